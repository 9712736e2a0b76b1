"""`python -m aurora_p2p.delta.warm`: compile every kernel into numba's cache, once per machine.

A delta and a snapshot of one small tensor per width, through the public functions, compile every kernel with every
signature that it will ever have (tests/delta holds them to it).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from aurora_p2p.delta.apply import stage, undo, write
from aurora_p2p.delta.classes.map import learn
from aurora_p2p.delta.classes.unpack import take_sizes
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta, encode_snapshot
from aurora_p2p.delta.jit import compiled_mark
from aurora_p2p.delta.snapshot import read_snapshot
from aurora_p2p.delta.tensors import Bits, bits_dtype
from aurora_p2p.types import TensorSpec

ELEMENTS = 1000


def compile_once(tell: Callable[[], None]) -> None:
    """main(), unless it came to its end on this machine before. tell: called first, as it takes 15 s of a core."""
    if not compiled_mark().exists():
        tell()
        main()


def main() -> None:
    specs = tuple(TensorSpec(dtype, dtype, (ELEMENTS,)) for dtype in ("BF16", "F32", "F64", "U8"))
    base: dict[str, Bits] = {}
    for spec in specs:
        base[spec.name] = np.arange(ELEMENTS).astype(bits_dtype(spec.dtype))
    new = {name: _stepped(bits) for name, bits in base.items()}
    classes = learn([(base["BF16"], new["BF16"])])
    delta = list(encode_delta(specs, base, new, full_digest(specs, base), classes))
    staged = stage(specs, delta, base, full_digest(specs, base), full_digest(specs, new), classes)
    write(staged, base, specs)
    undo(staged, base, specs)
    take_sizes(np.zeros(32, np.uint8).ctypes.data, 8, 0, 110, np.zeros(1, np.uint64), np.zeros(1, np.int64))
    read_snapshot(specs, encode_snapshot(specs, new), full_digest(specs, new))
    with suppress(OSError):  # a cache that cannot be written to: compiled anew in each process, and said each time
        compiled_mark().touch()


def _stepped(bits: Bits) -> Bits:
    """Steps of many sizes, sparse in the first half and dense in the second."""
    new = bits.copy()
    kind = bits.dtype.type
    new[: ELEMENTS // 2 : 9] += kind(1)
    new[: ELEMENTS // 2 : 45] += kind(40)
    new[ELEMENTS // 2 :] += kind(3)
    return new


if __name__ == "__main__":
    main()
