"""Squashing a stored chain: how fast, how small, in how much memory."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aurora_p2p.artifact.squash import Chain, Snapshot, Squash
from aurora_p2p.delta.classes.map import ONE_CLASS, learn, sampled
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta, encode_snapshot
from aurora_p2p.delta.tensors import Bits, layout_id
from aurora_p2p.types import NO_BASE, RunId, Seq, StateDigest, SwarmId, TensorSpec, Version
from aurora_p2p.wire.fold import Source
from aurora_p2p.wire.manifest import Header, TensorEntry

VERSIONS = 5
ROUNDS = 3


def squash_figures(steps: Iterable[Bits], *, versions: int = VERSIONS) -> dict[str, Any]:
    """Figures of a squash over `versions` versions from a snapshot, of one thread; peak_extra_mb by tracemalloc."""
    states = list(itertools.islice(steps, versions + 1))
    with tempfile.TemporaryDirectory(prefix="aurora-squash-") as folder, stored(states, Path(folder)) as chain:
        deltas = sum(body.nbytes for body in chain.bodies[1:])
        classes = Squash(chain, 1).classes
        seconds = {
            "squash": median_seconds(lambda: list(Squash(chain, 1, classes=classes))),
            "snapshot": median_seconds(lambda: list(Snapshot(chain))),
            "memcpy": median_seconds(states[0].copy),
        }
        return {
            "versions": versions,
            "elements": states[0].size,
            "bytes": sum(map(len, Squash(chain, 1, classes=classes))),
            "chain_bytes": deltas,
            "over_memcpy": seconds["memcpy"] / seconds["squash"],
            "snapshot_over_memcpy": seconds["memcpy"] / seconds["snapshot"],
            "peak_extra_mb": peak_mb(Squash(chain, 1, classes=classes)),
            "snapshot_peak_extra_mb": peak_mb(Snapshot(chain)),
            "checkpoint_mb": states[0].nbytes / 1e6,
        }


@contextmanager
def stored(states: Sequence[Bits], folder: Path) -> Iterator[Chain]:
    """A snapshot of the first state and a delta to each other one, as a store has them."""
    specs, sources = (TensorSpec("all", "BF16", states[0].shape),), list[Source]()
    for version, new in enumerate(states):
        base = {"all": states[version - 1]} if version else None
        classes = learn(sampled([(states[version - 1], new)])) if version else ONE_CLASS
        before = sources[-1].digest if sources else StateDigest(b"")
        encoder = (
            encode_delta(specs, base, {"all": new}, before, classes) if base else encode_snapshot(specs, {"all": new})
        )
        body = folder / str(version)
        with body.open("wb") as file:
            file.writelines(encoder)
        header = header_of(specs, version, before, classes.thresholds if version else b"")
        sources.append(Source(header, str(body), encoder.digest))
    assert sources[-1].digest == full_digest(specs, {"all": states[-1]})
    with Chain(sources) as chain:
        yield chain


def header_of(specs: Sequence[TensorSpec], version: int, base_digest: bytes, class_map: bytes) -> Header:
    return Header(
        format=1,
        swarm=SwarmId("1" * 52),
        run=RunId(bytes(16)),
        version=Version(version),
        seq=Seq(version),
        nonce=bytes(16),
        kind="delta" if version else "snapshot",
        base_version=Version(version - 1) if version else NO_BASE,
        base_manifest=b"",
        base_digest=base_digest,
        layout=layout_id(specs),
        segment_bytes=1 << 18,
        size_bound=1 << 40,
        class_map=class_map,
        tensors=() if version else tuple(TensorEntry(spec, "full") for spec in specs),
        model=None,
    )


def median_seconds(job: Any) -> float:
    """CPU seconds of this thread."""
    taken = []
    for _ in range(ROUNDS):
        started = time.thread_time()
        job()
        taken.append(time.thread_time() - started)
    return statistics.median(taken)


def peak_mb(pieces: Iterable[bytes]) -> float:
    """Largest extra memory while the pieces are made and let go."""
    tracemalloc.start()
    for _ in pieces:
        pass
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return peak
