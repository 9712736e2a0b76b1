"""How long a node takes from its store to its newest version: one commit after the other, at once, and folded.

    python -m benchmarks.restart [--json] [--deltas 30] [--layers 8] [--hidden 512]

one_by_one: the snapshot is loaded, then each delta staged and committed; at_once: all of them in one load; folded: the
snapshot and one squash of the same deltas (what a node that folds loads). Seconds of one engine on this machine's CPU,
medians of rounds that take turns; every way ends at the same digest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from aurora_p2p.artifact.squash import Chain, Squash
from aurora_p2p.delta.classes.map import ONE_CLASS, learn, sampled
from aurora_p2p.delta.encode import encode_delta, encode_snapshot
from aurora_p2p.delta.tensors import Bits
from aurora_p2p.engine.hf import HfEngine
from aurora_p2p.engine.tables import specs_of
from aurora_p2p.types import StateDigest, TensorSpec, Version
from aurora_p2p.wire.fold import Source
from aurora_p2p.wire.manifest import ModelConfig
from benchmarks.codec_squash import header_of
from benchmarks.fleet_model import CONFIG

ROUNDS = 3
CHANGED = 0.01


def measure(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    hidden = options.hidden
    config = msgspec.structs.replace(
        CONFIG, hidden_size=hidden, intermediate_size=3 * hidden, layers=options.layers, head_dim=hidden // 4
    )
    specs = specs_of(config)
    with tempfile.TemporaryDirectory(prefix="aurora-restart-") as folder:
        sources = publish(Path(folder), config, specs, options.deltas)
        squash = squashed(Path(folder), sources)
        ways: dict[str, Callable[[], StateDigest]] = {
            "one_by_one": lambda: one_by_one(sources),
            "at_once": lambda: load(sources),
            "folded": lambda: load([sources[0], squash]),
        }
        seconds = {name: statistics.median(taken) for name, taken in timed(ways, sources[-1].digest).items()}
        return {
            "parameters": sum(spec.elements for spec in specs),
            "deltas": options.deltas,
            "delta_bytes": sum(Path(source.body).stat().st_size for source in sources[1:]),
            "squash_bytes": Path(squash.body).stat().st_size,
            "snapshot_bytes": Path(sources[0].body).stat().st_size,
            "seconds": seconds,
            "faster": {name: seconds["one_by_one"] / seconds[name] for name in ("at_once", "folded")},
        }


def publish(folder: Path, config: ModelConfig, specs: list[TensorSpec], deltas: int) -> list[Source]:
    """A snapshot and deltas that each move CHANGED of the elements by an ULP."""
    rng, sources = np.random.default_rng(1), list[Source]()
    bits: dict[str, Bits] = {}
    for spec in specs:
        values = rng.normal(1.0 if "norm" in spec.name else 0.0, 0.02, spec.elements).astype(np.float32)
        bits[spec.name] = (values.view(np.uint32) >> 16).astype(np.uint16)
    for version in range(deltas + 1):
        base, before = bits, sources[-1].digest if sources else StateDigest(b"")
        classes = ONE_CLASS
        if version:
            bits = {
                name: np.where(rng.random(old.size) < CHANGED, old + 1, old).astype(np.uint16)
                for name, old in base.items()
            }
            classes = learn(sampled([(base[name], bits[name]) for name in bits]))
        encoder = encode_delta(specs, base, bits, before, classes) if version else encode_snapshot(specs, bits)
        body = folder / str(version)
        with body.open("wb") as file:
            file.writelines(encoder)
        header = header_of(specs, version, before, classes.thresholds if version else b"")
        sources.append(
            Source(msgspec.structs.replace(header, model=None if version else config), str(body), encoder.digest)
        )
    return sources


def squashed(folder: Path, sources: list[Source]) -> Source:
    """The deltas as one."""
    body = folder / "squash"
    with Chain(sources) as chain, body.open("wb") as file:
        squash = Squash(chain, 1)
        file.writelines(squash)
    header = msgspec.structs.replace(
        sources[-1].header,
        base_version=Version(0),
        base_digest=sources[0].digest,
        class_map=squash.classes.thresholds,
    )
    return Source(header, str(body), squash.digest)


def one_by_one(sources: list[Source]) -> StateDigest:
    engine = HfEngine()
    first, *rest = sources
    engine.load(first.header, Path(first.body), first.digest)
    for source in rest:
        engine.stage(source.header, Path(source.body), source.digest)
        engine.commit(source.header.version, audit=False)
    return engine.audit().digest


def load(sources: list[Source]) -> StateDigest:
    first, *rest = sources
    return HfEngine().load(first.header, Path(first.body), first.digest, rest).digest


def timed(ways: dict[str, Callable[[], StateDigest]], expected: StateDigest) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            assert way() == expected
            if number:  # the first round loads libraries and kernels
                taken[name].append(time.perf_counter() - started)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restart", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--deltas", type=int, default=30)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    figures = measure(parser.parse_args())
    print(json.dumps(figures, indent=None if parser.parse_args().json else 2))


if __name__ == "__main__":
    main()
