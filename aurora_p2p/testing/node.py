"""One simulated process of testing/network.py: a machine with a simulated store, uplink, downlink and clock.

The machine is the real Exchange unless another one with the same three methods is given. It sees messages only. The
driver's habits are kept: deadlines are looked at no more often than every LOOK_SECONDS (net/drive.py). Counts what a
test asks about. Time, wires and the other nodes belong to the Network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.exchange import Exchange, ExchangeConfig
from aurora_p2p.testing.lanes import Parcel, Pipe
from aurora_p2p.testing.topology import NodeSpec
from aurora_p2p.testing.wires import Server, Uplink
from aurora_p2p.types import ArtifactId, PeerId
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.exchange import ExchangeFrame, SegmentData

if TYPE_CHECKING:
    from aurora_p2p.testing.network import Network

FRAME_BYTES = 8
"""Length prefix of a frame on the bulk connection."""
STORE_SECONDS = 0.001
LOOK_SECONDS = 0.004
"""As in net/drive.py: the events of a burst share one look at the machine's deadlines."""
STILL_LIMIT = 1000
"""Looks in a row that each find the machine due again: more is a busy loop, a bug of the machine."""

__all__ = ["Counts", "Machine", "MachineFactory", "Node", "NodeSpec"]


class Machine(Protocol):
    """What a Node drives."""

    def handle(self, event: ev.Event, *, now: float) -> list[ev.Effect]: ...

    def expire(self, *, now: float) -> list[ev.Effect]: ...

    def next_deadline(self) -> float: ...


MachineFactory = Callable[[ExchangeConfig, PeerId, Random], Machine]


@dataclass(slots=True)
class Counts:
    """What one node did. sent: segments that left; duplicates: arrivals of what was held; wasted: all discarded.

    across: segments that arrived from another region. bad: arrivals that fail their hash. frames: control frames sent.
    """

    sent: int = 0
    sent_bytes: int = 0
    arrived: int = 0
    across: int = 0
    duplicates: int = 0
    bad: int = 0
    wasted: int = 0
    frames: int = 0
    banned: list[PeerId] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    equivocated: int = 0
    aborted: int = 0


class Node:
    """An honest node, or the host. Adversaries (testing/adversaries.py) override what leaves it."""

    def __init__(
        self, network: Network, identity: Identity, spec: NodeSpec, machine: MachineFactory = Exchange
    ) -> None:
        self.network, self.spec = network, spec
        self.identity, self.peer = identity, identity.peer
        self.rng = Random(network.rng.random())
        self.machine = machine(ExchangeConfig(network.swarm, up_kbps=spec.up_kbps), self.peer, self.rng)
        self.alive = True
        self.links: set[PeerId] = set()
        self.outgoing: dict[PeerId, Pipe] = {}
        self.incoming: dict[PeerId, Pipe] = {}
        self.store: dict[ArtifactId, dict[int, bytes]] = {}
        self.done: dict[ArtifactId, float] = {}
        self.counts = Counts()
        self.uplink = Uplink(network.timeline, spec.up)
        self.downlink = Server(network.timeline, spec.down)
        self._spool: dict[str, bytes] = {}
        self._tokens = 0
        self._looked_at = float("-inf")
        self._look_at = float("inf")
        self._still = 0

    # -- events in

    def feed(self, event: ev.Event) -> None:
        if self.alive:
            self._carry_out(self.machine.handle(event, now=self.network.now))

    def linked(self, peer: PeerId, outgoing: Pipe, incoming: Pipe) -> None:
        self.links.add(peer)
        self.outgoing[peer], self.incoming[peer] = outgoing, incoming
        self.feed(ev.LinkUp(peer))

    def unlinked(self, peer: PeerId) -> None:
        if peer in self.links:
            self.links.discard(peer)
            self.outgoing.pop(peer).close()
            del self.incoming[peer]
            self.feed(ev.LinkDown(peer))

    def die(self) -> None:
        """Nothing more leaves and nothing is acknowledged."""
        self.alive = False
        for pipe in self.outgoing.values():
            pipe.close()

    def is_at(self, pipe: Pipe) -> bool:
        """Whether we are still at the receiving end of this pipe."""
        return self.alive and self.incoming.get(pipe.source.peer) is pipe

    def frame_in(self, peer: PeerId, content: Any) -> None:
        """A control frame reached us."""
        frame = decode(content, ExchangeFrame) if isinstance(content, bytes) else content  # type: ignore[arg-type]
        self.feed(ev.FrameIn(peer, frame))

    def segment_in(self, peer: PeerId, content: tuple[Any, bytes, int]) -> None:
        """The last byte of a segment reached us."""
        header, payload, length = content
        frame = decode(header, SegmentData) if isinstance(header, bytes) else header
        self._tokens += 1
        token = str(self._tokens)
        self._spool[token] = payload
        digest = self.network.digest_of(payload)
        self._count(peer, frame, digest)
        self.feed(ev.SegmentIn(peer, frame, token, length, digest))

    def _count(self, peer: PeerId, frame: SegmentData, digest: bytes) -> None:
        counts = self.counts
        counts.arrived += 1
        counts.across += self.network.nodes[peer].spec.region != self.spec.region
        counts.bad += not self.network.is_right(frame.artifact, frame.index, digest)
        counts.duplicates += frame.index in self.store.get(frame.artifact, {})

    # -- effects out

    def _carry_out(self, effects: list[ev.Effect]) -> None:
        for effect in effects:
            self._one(effect)
        self._arm()

    def _one(self, effect: ev.Effect) -> None:
        match effect:
            case ev.SendFrame(peer, frame):
                self.send(peer, frame)
            case ev.SendSegment():
                self.send_segment(effect)
            case ev.Keep(artifact, index, token, _):
                payload = self._spool.pop(token)
                self.network.at(self.network.now + STORE_SECONDS, self._stored, artifact, index, payload)
            case ev.Discard(token):
                self._spool.pop(token)
                self.counts.wasted += 1
            case ev.CancelSend(peer, artifact, indices):
                if peer in self.outgoing:
                    self.outgoing[peer].cancel(lambda sent: sent.artifact == artifact and sent.index in indices)
            case ev.CloseLink(peer, _):
                self.network.cut(self.peer, peer)
            case _:
                self._notice(effect)

    def _notice(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Announced(manifest):
                self.network.at(self.network.now, self.announced, manifest)
            case ev.Completed(artifact):
                self.done.setdefault(artifact, self.network.now)
                self.network.completed(self, artifact)
            case ev.Banned(peer, _, _):
                self.counts.banned.append(peer)
            case ev.Refused(_, reason):
                self.counts.refused[reason] += 1
            case ev.Equivocated():
                self.counts.equivocated += 1
            case ev.AbortSeen() | ev.Contradicted():
                self.counts.aborted += 1

    def announced(self, manifest: Manifest) -> None:
        """A new artifact: what the daemon answers."""
        self.feed(ev.Accept(manifest.artifact))

    def _stored(self, artifact: ArtifactId, index: int, payload: bytes) -> None:
        self.store.setdefault(artifact, {})[index] = payload
        self.feed(ev.Stored(artifact, index))

    def send(self, peer: PeerId, frame: ExchangeFrame) -> None:
        pipe = self.outgoing.get(peer)
        if pipe is not None:
            self.counts.frames += 1
            encoded = encode(frame)
            pipe.send_control(encoded if self.network.exact else frame, FRAME_BYTES + len(encoded))

    def payload(self, effect: ev.SendSegment) -> bytes:
        """The bytes that really leave for a SendSegment."""
        return self.store[effect.artifact][effect.index]

    def send_segment(self, effect: ev.SendSegment) -> None:
        pipe = self.outgoing.get(effect.peer)
        if pipe is not None:
            frame = self.network.with_page(effect.frame) if pipe.several else effect.frame
            header = encode(frame)
            content = (header if self.network.exact else frame, self.payload(effect), effect.length)
            pipe.send(Parcel(content, FRAME_BYTES + len(header) + effect.length, effect))

    def segment_left(self, effect: ev.SendSegment) -> None:
        if self.alive and effect.peer in self.links:
            self.counts.sent += 1
            self.counts.sent_bytes += effect.length
            self.feed(ev.SegmentOut(effect.peer, effect.artifact, effect.index, effect.length))

    # -- time

    def _arm(self) -> None:
        """After any event the driver looks at the deadlines, as soon as it may."""
        at = max(self.network.now, self._looked_at + LOOK_SECONDS)
        if at < self._look_at:
            self._look_at = at
            self.network.at(at, self._look, at)

    def _look(self, planned: float) -> None:
        if not self.alive or planned != self._look_at:
            return
        now = self._looked_at = self.network.now
        self._look_at = float("inf")
        due = self.machine.next_deadline()
        if due <= now:
            for effect in self.machine.expire(now=now):
                self._one(effect)
            due = self.machine.next_deadline()
            self._still = self._still + 1 if due <= now else 0
            if self._still > STILL_LIMIT:
                raise RuntimeError("the machine is due again and again, whatever it is asked")
        at = max(due, now + LOOK_SECONDS)
        if at < self._look_at:
            self._look_at = at
            self.network.at(at, self._look, at)
