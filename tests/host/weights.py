"""Real weights, tiny, published through a host's desk version by version: what a fold needs to read."""

from __future__ import annotations

import numpy as np

from aurora_p2p.delta.classes.map import learn
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta, encode_snapshot
from aurora_p2p.delta.tensors import layout_id
from aurora_p2p.lease.events import VersionPublished
from aurora_p2p.types import TensorSpec
from aurora_p2p.wire.manifest import TensorEntry
from tests.host.world import SEGMENT, begin

SPECS = (TensorSpec("a", "BF16", (3000,)), TensorSpec("b", "F32", (40, 10)))
BOUND = 1 << 17


class Training:
    """The trainer's side. states: bits by version."""

    def __init__(self, host, seed=5):
        self.host, self.rng, self.states = host, np.random.default_rng(seed), []

    @property
    def version(self):
        return len(self.states) - 1

    def digest(self, version=-1):
        return full_digest(SPECS, self.states[version])

    async def publish(self, times=1):
        """The next version: a snapshot first, then deltas that move a tenth of the elements."""
        for _ in range(times):
            await self._publish()

    async def _publish(self):
        if not self.states:
            bits = {s.name: self.rng.integers(0, 2**15, s.elements).astype(f"u{s.nbytes // s.elements}") for s in SPECS}
            encoder, classes, tensors = encode_snapshot(SPECS, bits), b"", tuple(TensorEntry(s, "full") for s in SPECS)
        else:
            base = self.states[-1]
            bits = {name: self._moved(one) for name, one in base.items()}
            learned = learn([(base["a"], bits["a"])])
            encoder = encode_delta(SPECS, base, bits, self.digest(), learned)
            classes, tensors = learned.thresholds, ()
        header = begin(
            self.version + 1,
            self.host.desk.newest,
            layout=layout_id(SPECS),
            size_bound=BOUND,
            class_map=classes,
            tensors=tensors,
        )
        await self.host.desk.begin(header, SEGMENT)
        await self.host.desk.add(b"".join(encoder))
        await self.host.desk.end(encoder.digest)
        self.states.append(bits)
        newest = self.host.desk.newest
        await self.host.pool_door.handle(VersionPublished(newest.version, newest.manifest_hash, newest.digest))

    def _moved(self, bits):
        moved = self.rng.random(bits.size) < 0.1
        return np.where(moved, bits + 1, bits).astype(bits.dtype)
