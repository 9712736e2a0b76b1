"""`python -m aurora_p2p.delta.warm`: compile every kernel into numba's cache, once per machine.

Kernels have one signature each, so one small delta and one small snapshot through the public functions compile all.
"""

from __future__ import annotations

import numpy as np

from aurora_p2p.delta.apply import stage, undo, write
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta, encode_snapshot
from aurora_p2p.delta.snapshot import read_snapshot
from aurora_p2p.types import TensorSpec


def main() -> None:
    specs = (TensorSpec("weight", "BF16", (64,)),)
    base = {"weight": np.arange(64, dtype=np.uint16)}
    new = {"weight": base["weight"] + np.uint16(1)}
    new["weight"][::8] += np.uint16(40)
    delta = encode_delta(specs, base, new, full_digest(specs, base))
    staged = stage(specs, delta, base, full_digest(specs, base), full_digest(specs, new))
    write(staged, base, specs)
    undo(staged, base, specs)
    snapshot = encode_snapshot(specs, new)
    read_snapshot(specs, snapshot, full_digest(specs, new))


if __name__ == "__main__":
    main()
