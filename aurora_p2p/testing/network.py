"""A seeded network in one process that runs the real exchange machines, which see messages only.

Event-driven, in simulated seconds (timeline.py). What it models:

    bandwidth      up and down per node, cuts that regions share; control frames first, connections in turn (wires.py)
    connections    windows that start small, order, several lanes across regions (lanes.py)
    distance       round trips of nodes and between regions, loss as a limit of a connection's rate (topology.py)
    membership     rosters with regions, neighbours chosen as the driver does, NAT (membership.py)
    churn          kill, cut, join; a death is noticed when the caller says so

The same seed gives the same run, event for event. `exact` sends real bytes through the wire codec and hashes them;
otherwise frames travel as objects of known length, and segments as tokens (publishing.py).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from blake3 import blake3
from msgspec import structs

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.exchange import Exchange
from aurora_p2p.testing.lanes import Parcel, Pipe
from aurora_p2p.testing.membership import Membership, pairs, reachable
from aurora_p2p.testing.node import MachineFactory, Node
from aurora_p2p.testing.publishing import Publication, header_of, segments_of
from aurora_p2p.testing.timeline import Timeline
from aurora_p2p.testing.topology import NodeSpec, Topology
from aurora_p2p.testing.wires import Server
from aurora_p2p.types import ArtifactId, PeerId, SwarmId
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.exchange import SegmentData

SEED_BYTES = 32
NOWHERE = Topology()


class Ends:
    """Both ends of every pipe: from lanes.py back to the nodes."""

    def left(self, pipe: Pipe, token: Any) -> None:
        pipe.source.segment_left(token)

    def control_in(self, pipe: Pipe, content: Any) -> bool:
        there: bool = pipe.target.is_at(pipe)
        if there:
            pipe.target.frame_in(pipe.source.peer, content)
        return there

    def parcel_in(self, pipe: Pipe, parcel: Parcel) -> bool:
        there: bool = pipe.target.is_at(pipe)
        if there:
            pipe.target.segment_in(pipe.source.peer, parcel.content)
        return there

    def is_there(self, pipe: Pipe) -> bool:
        there: bool = pipe.target.is_at(pipe)
        return there


class Network:
    """One host (the origin, `network.host`) and any number of nodes.

    mesh: a node that is added is linked to everybody alive; without it links follow from `enrol`. machine: what the
    nodes run instead of the Exchange.
    """

    def __init__(
        self,
        seed: int,
        host: NodeSpec,
        topology: Topology = NOWHERE,
        *,
        exact: bool = True,
        mesh: bool = True,
        machine: MachineFactory = Exchange,
    ) -> None:
        self.rng = Random(seed)
        self.timeline = Timeline()
        self.at = self.timeline.at
        self.topology, self.exact = topology, exact
        self._mesh, self._machine = mesh, machine
        self._ends = Ends()
        self._cuts: dict[object, Server] = {}
        self._published: dict[ArtifactId, Publication] = {}
        self.publisher = Identity(self.rng.randbytes(SEED_BYTES))
        self.swarm = SwarmId(str(self.publisher.peer))
        self.membership = Membership(self.swarm, self.publisher)
        self.nodes: dict[PeerId, Node] = {}
        self.completed: Callable[[Node, ArtifactId], None] = lambda node, artifact: None
        """Called when a node has all of an artifact."""
        self.host = self.add(host)

    @property
    def now(self) -> float:
        return self.timeline.now

    def run(self, until: float, stop: Callable[[], bool] | None = None, *, budget: float = float("inf")) -> None:
        """Let events happen up to a time, or until `stop()` or `timeline.halt()`. Raises BudgetError (timeline.py)."""
        self.timeline.run(until, stop, budget=budget)

    # -- nodes and links

    def add(self, spec: NodeSpec, kind: type[Node] = Node) -> Node:
        """A new node; in a mesh linked to everybody alive one round trip from now."""
        node = kind(self, Identity(self.rng.randbytes(SEED_BYTES)), spec, self._machine)
        host = self.host.peer if self.nodes else node.peer
        node.feed(ev.TrustChanged(self.publisher.peer, frozenset({host})))
        others = [other for other in self.nodes.values() if other.alive and self._mesh]
        self.nodes[node.peer] = node
        for other in others:
            self.at(self.now + self.topology.round_trip(node.spec, other.spec), self.link, node, other)
        return node

    def enrol(self) -> None:
        """A new roster of everybody alive reaches them at once, and they dial their neighbours.

        Links that nobody wants any more stay, as long as both ends are members.
        """
        alive = {node.peer: node for node in self.nodes.values() if node.alive}
        roster, hosts = self.membership.seal(alive.values()), frozenset({self.host.peer})
        for node in alive.values():
            node.feed(ev.RosterChanged(roster))
        wanted = {node.peer: self.membership.dials(node, roster, hosts, self.now) for node in alive.values()}
        for a, b in pairs(wanted):
            if b not in alive[a].links:
                round_trip = self.topology.round_trip(alive[a].spec, alive[b].spec)
                self.at(self.now + round_trip, self.link, alive[a], alive[b])

    def link(self, a: Node, b: Node) -> None:
        """Open a link, if one end can dial the other and there is none."""
        if a.alive and b.alive and reachable(a, b) and b.peer not in a.links and a.peer not in b.links:
            there, back = self._pipe(a, b), self._pipe(b, a)
            a.linked(b.peer, there, back)
            b.linked(a.peer, back, there)

    def cut(self, a: PeerId, b: PeerId) -> None:
        """Close a link: at once on the side of `a`, one delay later on the other."""
        here, there = self.nodes[a], self.nodes[b]
        pipe = here.outgoing.get(b)
        self.at(self.now, here.unlinked, b)
        if pipe is not None:
            self.at(self.now + pipe.delay, self._end, there, a, pipe)

    def kill(self, node: Node, *, noticed_after: float = 0.0) -> None:
        """The process is gone: links close after `noticed_after` seconds and a delay."""
        node.die()
        for peer, pipe in sorted(node.outgoing.items()):
            self.at(self.now + noticed_after + pipe.delay, self._end, self.nodes[peer], node.peer, pipe)

    def _end(self, node: Node, peer: PeerId, pipe: Pipe) -> None:
        """This side learns that the link it has by `pipe` is gone."""
        if node.incoming.get(peer) is pipe:
            node.unlinked(peer)

    def _pipe(self, a: Node, b: Node) -> Pipe:
        topology = self.topology
        way = (a.uplink, topology.delay(a.spec, b.spec), (*self._between(a.spec, b.spec), b.downlink))
        return Pipe(self.timeline, self._ends, (a, b), way, *topology.connections(a.spec, b.spec))

    def _between(self, a: NodeSpec, b: NodeSpec) -> list[Server]:
        if a.region == b.region:
            return []
        pair = (a.region, b.region)
        rates: dict[object, float | None] = {a.region: self.topology.egress.get(a.region)}
        rates[pair] = self.topology.cuts.get(pair)
        found = []
        for key, rate in rates.items():
            if rate is not None:
                found.append(self._cuts.setdefault(key, Server(self.timeline, rate)))
        return found

    # -- artifacts

    def publish(
        self, size: int, segment_bytes: int, *, seconds: float = 0.0, page_segments: int = 16, seq: int = 1
    ) -> ArtifactId:
        """The host publishes `size` random bytes, produced evenly over `seconds` from now on."""
        header = header_of(self.swarm, self.rng.randbytes(16), size=size, segment_bytes=segment_bytes, seq=seq)
        publication = Publication(self.publisher, header, segments_of(self.rng, size, segment_bytes, exact=self.exact))
        self._published[publication.artifact] = publication
        self.host.store.setdefault(publication.artifact, {})
        self.host.feed(ev.Publish(publication.manifest))
        count = len(publication.segments)
        for first in range(0, max(count, 1), page_segments):
            batch = range(first, min(first + page_segments, count))
            self.at(self.now + seconds * batch.stop / max(count, 1), self._produce, publication, batch)
        return publication.artifact

    def _produce(self, publication: Publication, batch: range) -> None:
        last, artifact = publication.produce(batch), publication.artifact
        for index in batch:
            self.host.store[artifact][index] = publication.segments[index].payload
        self.host.feed(ev.Produced(artifact, batch, last))
        if publication.manifest.final is not None:
            self.host.feed(ev.Finished(artifact))

    def digest_of(self, payload: bytes) -> bytes:
        return blake3(payload).digest() if self.exact else payload

    def is_right(self, artifact: ArtifactId, index: int, digest: bytes) -> bool:
        """Whether that is the segment as the host made it."""
        known = self._published.get(artifact)
        return known is not None and index < len(known.segments) and known.segments[index].digest == digest

    def with_page(self, frame: SegmentData) -> SegmentData:
        """The frame with its page, as the driver sends it where segments overtake each other (net/drive.py)."""
        known = self._published.get(frame.artifact)
        page = known.manifest.page_of(frame.index) if known else None
        return frame if frame.page or page is None else structs.replace(frame, page=encode(page))
