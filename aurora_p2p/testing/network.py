"""A seeded network in one process that runs the real exchange machines.

Event-driven, in simulated seconds. Every node has an uplink that serves control frames first and then its links in
turn, one frame at a time at `up` bytes/s; a one-way delay of half the round trip; and a downlink that takes segments in
order of arrival at `down` bytes/s. Frames pass through the wire codec; segments are real bytes, hashed on
arrival. The same seed gives the same run, event for event.

It has no TCP (no slow start, no loss): times are lower bounds of what sockets do, protocol decisions are the real ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from random import Random

from blake3 import blake3

from aurora_p2p.artifact.manifest import Manifest, PageWriter
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.swarm import events as ev
from aurora_p2p.testing.node import Node, NodeSpec
from aurora_p2p.types import NO_BASE, ArtifactId, PeerId, RunId, Seq, StateDigest, SwarmId, Version
from aurora_p2p.wire.manifest import Header
from aurora_p2p.wire.signed import seal

SEED_BYTES = 32


class Network:
    """One host (the origin, `network.host`) and any number of nodes, all linked to each other."""

    def __init__(self, seed: int, host: NodeSpec) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.publisher = Identity(self.rng.randbytes(SEED_BYTES))
        self.swarm = SwarmId(str(self.publisher.peer))
        self.nodes: dict[PeerId, Node] = {}
        self.host = self.add(host)

    def add(self, spec: NodeSpec, kind: type[Node] = Node) -> Node:
        """A new node, linked to everybody alive one round trip from now."""
        node = kind(self, Identity(self.rng.randbytes(SEED_BYTES)), spec)
        host = self.host.peer if self.nodes else node.peer
        node.feed(ev.TrustChanged(self.publisher.peer, frozenset({host})))
        for other in [other for other in self.nodes.values() if other.alive]:
            self.at(self.now + self.delay(node.peer, other.peer) * 2, partial(self.link, node, other))
        self.nodes[node.peer] = node
        return node

    def link(self, a: Node, b: Node) -> None:
        if a.alive and b.alive:
            a.linked(b.peer)
            b.linked(a.peer)

    def cut(self, a: PeerId, b: PeerId) -> None:
        """Close a link: at once on the side of `a`, one delay later on the other."""
        self.at(self.now, lambda: self.nodes[a].unlinked(b))
        self.at(self.now + self.delay(a, b), lambda: self.nodes[b].unlinked(a))

    def kill(self, node: Node, *, noticed_after: float = 0.0) -> None:
        """The process is gone: links close after `noticed_after` seconds and a delay."""
        node.alive = False
        for peer in sorted(node.links):
            at = self.now + noticed_after + self.delay(node.peer, peer)
            self.at(at, partial(self.nodes[peer].unlinked, node.peer))

    def delay(self, a: PeerId, b: PeerId) -> float:
        return (self.nodes[a].spec.rtt if a in self.nodes else 0.01) / 4 + (self.nodes[b].spec.rtt) / 4

    def carry(self, source: PeerId, target: PeerId, header: bytes, payload: bytes) -> None:
        self.at(self.now + self.delay(source, target), lambda: self.nodes[target].receive(source, header, payload))

    def at(self, time: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (time, self._count, action))

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let events happen up to a time, or until `stop()`."""
        while self._queue and self._queue[0][0] <= until and not stop():
            self.now, _, action = heapq.heappop(self._queue)
            action()

    def header(self, size: int, segment_bytes: int, seq: int) -> Header:
        return Header(
            format=1,
            swarm=self.swarm,
            run=RunId(bytes(16)),
            version=Version(seq),
            seq=Seq(seq),
            nonce=self.rng.randbytes(16),
            kind="snapshot",
            base_version=NO_BASE,
            base_manifest=b"",
            base_digest=b"",
            layout=bytes(32),
            segment_bytes=segment_bytes,
            size_bound=4 * max(size, segment_bytes),
            class_map=b"",
            tensors=(),
            model=None,
        )

    def publish(
        self, size: int, segment_bytes: int, *, seconds: float = 0.0, page_segments: int = 16, seq: int = 1
    ) -> ArtifactId:
        """The host publishes `size` random bytes, produced evenly over `seconds` from now on."""
        header = seal(self.publisher, self.header(size, segment_bytes, seq))
        manifest, pages = Manifest(header, self.publisher.peer), PageWriter(self.publisher, header)
        body = self.rng.randbytes(size)
        segments = [body[start : start + segment_bytes] for start in range(0, size, segment_bytes)]
        self.host.feed(ev.Publish(manifest))
        store = self.host.store.setdefault(manifest.artifact, {})

        def produce(first: int) -> None:
            batch = segments[first : first + page_segments]
            for index, segment in enumerate(batch, first):
                store[index] = segment
                pages.add(blake3(segment).digest())
            for page in pages.flush():
                manifest.add_page(page)
            complete = first + len(batch) == len(segments)
            last = len(batch[-1]) if complete and batch else None
            self.host.feed(ev.Produced(manifest.artifact, range(first, first + len(batch)), last))
            if complete:
                manifest.add_final(pages.finish(size, StateDigest(bytes(32))))
                self.host.feed(ev.Finished(manifest.artifact))

        for first in range(0, max(len(segments), 1), page_segments):
            share = min(first + page_segments, len(segments)) / max(len(segments), 1)
            self.at(self.now + seconds * share, partial(produce, first))
        return manifest.artifact
