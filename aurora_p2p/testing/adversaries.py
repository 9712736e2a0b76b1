"""Nodes that misbehave, for the simulated network. Each lies in one way and follows the protocol otherwise."""

from __future__ import annotations

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.swarm import events as ev
from aurora_p2p.testing.node import Node
from aurora_p2p.types import PeerId
from aurora_p2p.wire.exchange import Bitfield, ExchangeFrame, Reject


class Corrupter(Node):
    """Sends every segment with one bit flipped."""

    def payload(self, effect: ev.SendSegment) -> bytes:
        good = super().payload(effect)
        return bytes([good[0] ^ 1]) + good[1:]


class Staller(Node):
    """Takes segments, announces them, accepts requests, and never sends a byte of one."""

    def send_segment(self, effect: ev.SendSegment) -> None:
        pass


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
