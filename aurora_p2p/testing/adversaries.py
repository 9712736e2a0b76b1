"""Nodes that misbehave, for the simulated network. Each lies in one way and follows the protocol otherwise."""

from __future__ import annotations

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.swarm import events as ev
from aurora_p2p.testing.network import Network
from aurora_p2p.testing.node import Node
from aurora_p2p.testing.publishing import header_of
from aurora_p2p.types import ArtifactId, PeerId
from aurora_p2p.wire.exchange import Bitfield, ExchangeFrame, Have, Offer, Reject
from aurora_p2p.wire.signed import seal

SLY_EVERY = 3
SLOW_SECONDS = 2.0


class Corrupter(Node):
    """Sends every segment with one bit flipped."""

    def payload(self, effect: ev.SendSegment) -> bytes:
        return _flipped(super().payload(effect))


class SlyCorrupter(Node):
    """Flips a bit in every third segment that it sends, and only for half of its peers."""

    def payload(self, effect: ev.SendSegment) -> bytes:
        good = super().payload(effect)
        return _flipped(good) if self.counts.sent % SLY_EVERY == 0 and _half(self.peer, effect.peer) else good


class Staller(Node):
    """Takes segments, announces them, accepts requests, and never sends a byte of one."""

    def send_segment(self, effect: ev.SendSegment) -> None:
        pass


class Slow(Node):
    """Sends every segment SLOW_SECONDS after it could."""

    def send_segment(self, effect: ev.SendSegment) -> None:
        self.network.at(self.network.now + SLOW_SECONDS, super().send_segment, effect)


class Selective(Node):
    """Serves half of its peers as it should, and the others not at all."""

    def send_segment(self, effect: ev.SendSegment) -> None:
        if _half(self.peer, effect.peer):
            super().send_segment(effect)


class HaveLiar(Node):
    """Fetches nothing, claims to hold everything, and does not answer requests."""

    def announced(self, manifest: Manifest) -> None:
        self.feed(ev.Decline(manifest.artifact))
        everything = ((1 << manifest.max_segments) - 1).to_bytes(-(-manifest.max_segments // 8), "little")
        for peer in sorted(self.links):
            self.send(peer, Bitfield(manifest.artifact, everything))

    def send(self, peer: PeerId, frame: ExchangeFrame) -> None:
        if not isinstance(frame, Reject):
            super().send(peer, frame)


class Sybil(Node):
    """One of several behind one head: what one gets all announce, so that each vouches for the others; none serves."""

    def _stored(self, artifact: ArtifactId, index: int, payload: bytes) -> None:
        super()._stored(artifact, index, payload)
        for other in self.network.nodes.values():
            if isinstance(other, Sybil) and other is not self:
                other.vouch(artifact, index)

    def vouch(self, artifact: ArtifactId, index: int) -> None:
        """Announce what only an accomplice has."""
        if index not in self.store.get(artifact, {}):
            for peer in sorted(self.links):
                self.send(peer, Have(artifact, (index,), 0))

    def send_segment(self, effect: ev.SendSegment) -> None:
        pass


def equivocate(network: Network, size: int, segment_bytes: int, *, seq: int) -> ArtifactId:
    """The publisher signs two artifacts with one seq: one is published, of the other half of the nodes hear at once."""
    header = header_of(network.swarm, network.rng.randbytes(16), size=size, segment_bytes=segment_bytes, seq=seq)
    other = Offer(seal(network.publisher, header), None)
    for peer in sorted(network.host.links)[::2]:
        network.host.send(peer, other)
    return network.publish(size, segment_bytes, seq=seq)


def _flipped(good: bytes) -> bytes:
    return bytes([good[0] ^ 1]) + good[1:]


def _half(a: PeerId, b: PeerId) -> bool:
    """Whether b is in the half of all peers that a favours."""
    return (sum(a.encode()) + sum(b.encode())) % 2 == 0
