"""One simulated process of testing/network.py: the real exchange machine with a simulated store, uplink and downlink.

Counts what a test asks about. The clock, the wires and the other nodes belong to the Network.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from blake3 import blake3

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.exchange import Exchange, ExchangeConfig
from aurora_p2p.types import ArtifactId, PeerId
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.exchange import ExchangeFrame, SegmentData

if TYPE_CHECKING:
    from aurora_p2p.testing.network import Network

FRAME_BYTES = 8
"""Length prefix of a frame on the bulk connection."""
STORE_SECONDS = 0.001
STILL_LIMIT = 1000
"""Expiries of one machine without simulated time passing: more is a busy loop, a bug of the machine."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """up, down: bytes/s. rtt: seconds to the middle of the network and back; two nodes are half the sum apart."""

    up: float = 1e6
    down: float = 1e6
    rtt: float = 0.01


@dataclass(slots=True)
class Outgoing:
    """A frame in the uplink; `token` is the effect behind a segment."""

    peer: PeerId
    header: bytes
    payload: bytes
    token: ev.SendSegment | None


@dataclass(slots=True)
class Counts:
    """What one node did. sent: segments that left; duplicates: arrivals of what was held; wasted: all discarded."""

    sent: int = 0
    sent_bytes: int = 0
    duplicates: int = 0
    wasted: int = 0
    banned: list[PeerId] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    equivocated: int = 0
    aborted: int = 0


class Node:
    """An honest node, or the host. Adversaries (testing/adversaries.py) override what leaves it."""

    def __init__(self, network: Network, identity: Identity, spec: NodeSpec) -> None:
        self.network, self.spec = network, spec
        self.identity, self.peer = identity, identity.peer
        config = ExchangeConfig(network.swarm, up_kbps=int(spec.up / 125))
        self.machine = Exchange(config, self.peer, Random(network.rng.random()))
        self.alive = True
        self.links: set[PeerId] = set()
        self.store: dict[ArtifactId, dict[int, bytes]] = {}
        self.done: dict[ArtifactId, float] = {}
        self.counts = Counts()
        self._spool: dict[str, bytes] = {}
        self._control: deque[Outgoing] = deque()
        self._segments: dict[PeerId, deque[Outgoing]] = {}
        self._sending = False
        self._down_free = 0.0
        self._wake_at = float("inf")
        self._tokens = 0
        self._still = (0.0, 0)

    # -- events in

    def feed(self, event: ev.Event) -> None:
        if self.alive:
            self._carry_out(self.machine.handle(event, now=self.network.now))

    def linked(self, peer: PeerId) -> None:
        self.links.add(peer)
        self.feed(ev.LinkUp(peer))

    def unlinked(self, peer: PeerId) -> None:
        if peer in self.links:
            self.links.discard(peer)
            self._segments.pop(peer, None)
            self._control = deque(item for item in self._control if item.peer != peer)
            self.feed(ev.LinkDown(peer))

    def receive(self, peer: PeerId, header: bytes, payload: bytes) -> None:
        """A frame reached our end of the wire."""
        if not self.alive or peer not in self.links:
            return
        if not payload:
            self.feed(ev.FrameIn(peer, decode(header, ExchangeFrame)))  # type: ignore[arg-type]
            return
        self._down_free = max(self._down_free, self.network.now) + (len(header) + len(payload)) / self.spec.down
        self.network.at(self._down_free, lambda: self._segment_in(peer, header, payload))

    def _segment_in(self, peer: PeerId, header: bytes, payload: bytes) -> None:
        if not self.alive or peer not in self.links:
            return
        self._tokens += 1
        token = str(self._tokens)
        frame = decode(header, SegmentData)
        self._spool[token] = payload
        if frame.index in self.store.get(frame.artifact, {}):
            self.counts.duplicates += 1
        self.feed(ev.SegmentIn(peer, frame, token, len(payload), blake3(payload).digest()))

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
            case ev.CancelSend(peer, artifact, indices):
                queue = self._segments.get(peer, deque())
                gone = [o for o in queue if o.token and o.token.artifact == artifact and o.token.index in indices]
                self._segments[peer] = deque(o for o in queue if o not in gone)
            case ev.CloseLink(peer, _):
                self.network.cut(self.peer, peer)
            case ev.Keep(artifact, index, token, _):
                payload = self._spool.pop(token)
                self.network.at(self.network.now + STORE_SECONDS, lambda: self._stored(artifact, index, payload))
            case ev.Discard(token):
                self._spool.pop(token)
                self.counts.wasted += 1
            case ev.Announced(manifest):
                self.network.at(self.network.now, lambda: self.announced(manifest))
            case ev.Completed(artifact):
                self.done.setdefault(artifact, self.network.now)
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
        self._control.append(Outgoing(peer, encode(frame), b"", None))
        self._serve()

    def payload(self, effect: ev.SendSegment) -> bytes:
        """The bytes that really leave for a SendSegment."""
        return self.store[effect.artifact][effect.index]

    def send_segment(self, effect: ev.SendSegment) -> None:
        item = Outgoing(effect.peer, encode(effect.frame), self.payload(effect), effect)
        self._segments.setdefault(effect.peer, deque()).append(item)
        self._serve()

    def _serve(self) -> None:
        item = None if self._sending or not self.alive else self._next()
        if item is None:
            return
        self._sending = True
        size = FRAME_BYTES + len(item.header) + len(item.payload)
        self.network.at(self.network.now + size / self.spec.up, lambda: self._left(item))

    def _next(self) -> Outgoing | None:
        if self._control:
            return self._control.popleft()
        for peer, queue in list(self._segments.items()):
            if queue:
                item = queue.popleft()
                self._segments[peer] = self._segments.pop(peer)
                return item
        return None

    def _left(self, item: Outgoing) -> None:
        self._sending = False
        if self.alive and item.peer in self.links:
            self.network.carry(self.peer, item.peer, item.header, item.payload)
            if item.token is not None:
                self.counts.sent += 1
                self.counts.sent_bytes += len(item.payload)
                token = item.token
                self.feed(ev.SegmentOut(item.peer, token.artifact, token.index, token.length))
        self._serve()

    # -- time

    def _arm(self) -> None:
        due = self.machine.next_deadline()
        if due < self._wake_at:
            self._wake_at = due
            self.network.at(max(due, self.network.now), lambda: self._wake(due))

    def _wake(self, due: float) -> None:
        if not self.alive or due != self._wake_at:
            return
        at, count = self._still
        self._still = (self.network.now, count + 1 if at == self.network.now else 0)
        if count > STILL_LIMIT:
            raise RuntimeError("the machine asks to be woken again and again at one instant")
        self._wake_at = float("inf")
        self._carry_out(self.machine.expire(now=self.network.now))
