"""What the exchange has done since the process started: counters fed with the machine's own events, for the status.

Payload bytes and segments only; frames without payload are not counted. Per-peer counters are kept for members,
per-artifact ones until the artifact is retired; totals stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.net.rates import Rates
from aurora_p2p.swarm import events as ev
from aurora_p2p.types import ArtifactId, PeerId, Version

SHOWN_ARTIFACTS = 32
"""Newest ones in a status."""
MAX_REASONS = 64
"""Distinct reasons of refusal that are counted by name."""


@dataclass(frozen=True, slots=True)
class Link:
    """An open link. address: of the other end, as our own kernel names it. dialled: by us."""

    address: str
    dialled: bool
    rtt_seconds: float = 0.0
    """Shortest of the last minutes, by the kernel; 0: unknown."""
    lanes: int = 1
    """Connections that it has."""


@dataclass(slots=True)
class Passage:
    """One artifact's way through this process. ours: this process published it, and it was the first of its version."""

    manifest: Manifest
    ours: bool = False
    sent_bytes: int = 0
    received: Counter[str] = field(default_factory=Counter)
    """Verified segments by where they came from: "origin" or "peers"."""

    def snapshot(self, have: int) -> dict[str, Any]:
        header, final = self.manifest.header, self.manifest.final
        return {
            "artifact": self.manifest.artifact.hex(),
            "version": header.version,
            "seq": header.seq,
            "kind": header.kind,
            "have": have,
            "segments": final.segments if final else 0,
            "bytes": final.length if final else 0,
            "sent_bytes": self.sent_bytes,
            "from_origin": self.received["origin"],
            "from_peers": self.received["peers"],
        }


class Traffic:
    def __init__(self) -> None:
        self.linked: dict[PeerId, Link] = {}
        """Peers with an open link."""
        self._up: Rates[PeerId] = Rates()
        self._down: Rates[PeerId] = Rates()
        self._ban_reasons: dict[PeerId, str] = {}
        self._hosts: frozenset[PeerId] = frozenset()
        self._passages: dict[ArtifactId, Passage] = {}
        self._senders: dict[str, PeerId] = {}
        """Who sent the payload in a spool file; each is answered at once by a Keep or a Discard."""
        self._sent: Counter[PeerId] = Counter()
        self._received: Counter[PeerId] = Counter()
        self._totals = {"sent_bytes": 0, "received_bytes": 0}
        self._segments = {"origin": 0, "peers": 0, "sent": 0}
        self._published = {"sent_bytes": 0, "artifact_bytes": 0}
        self._highest = Version(-1)
        """Of what was published or restored: another artifact of such a version is for those behind, not a new copy."""
        self._refused: Counter[str] = Counter()

    def happened(self, event: ev.Event) -> None:
        """Count an event on its way into the machine."""
        match event:
            case ev.SegmentIn(peer, _, token, length):
                self._senders[token] = peer
                self._received[peer] += length
                self._totals["received_bytes"] += length
            case ev.SegmentOut():
                self._sent_out(event)
            case ev.Publish(manifest):
                first = manifest.header.version > self._highest
                self._highest = max(manifest.header.version, self._highest)
                self._passages[manifest.artifact] = Passage(manifest, ours=first)
            case ev.Restored(manifest):
                self._highest = max(manifest.header.version, self._highest)
                self._passages[manifest.artifact] = Passage(manifest)
            case ev.Finished(artifact):
                passage = self._passages.get(artifact)
                if passage is not None and passage.ours and passage.manifest.final is not None:
                    self._published["artifact_bytes"] += passage.manifest.final.length
            case ev.Retire(artifact):
                self.forget(artifact)
            case ev.TrustChanged():
                self._hosts = event.hosts

    def opened(self, peer: PeerId, address: str, *, dialled: bool) -> None:
        self.linked[peer] = Link(address, dialled)

    def looked(self, states: Collection[tuple[PeerId, int, int]]) -> None:
        """The bulk child's word on its open links: (peer, round trip in microseconds or 0, connections)."""
        for peer, rtt, lanes in states:
            if peer in self.linked:
                self.linked[peer] = replace(self.linked[peer], rtt_seconds=rtt / 1e6, lanes=lanes)

    @property
    def rtts(self) -> dict[PeerId, float]:
        """Seconds, of links where it is known."""
        return {peer: link.rtt_seconds for peer, link in self.linked.items() if link.rtt_seconds > 0}

    def closed(self, peer: PeerId) -> None:
        self.linked.pop(peer, None)

    def banned(self, peer: PeerId, reason: str, banned: Collection[PeerId]) -> None:
        """banned: everybody who is banned now, this peer included; the reasons of others are forgotten."""
        self._ban_reasons[peer] = reason
        self._ban_reasons = {one: why for one, why in self._ban_reasons.items() if one in banned}

    def observe(self, now: float) -> None:
        """Look at the counters, about once a second: rates are made of their differences."""
        self._up.observe({peer: self._sent[peer] for peer in self._peers()}, now)
        self._down.observe({peer: self._received[peer] for peer in self._peers()}, now)

    def announced(self, manifest: Manifest) -> None:
        self._passages.setdefault(manifest.artifact, Passage(manifest))

    def kept(self, artifact: ArtifactId, token: str) -> None:
        """A received segment verified."""
        source = "origin" if self._senders.pop(token, None) in self._hosts else "peers"
        self._segments[source] += 1
        passage = self._passages.get(artifact)
        if passage is not None:
            passage.received[source] += 1

    def discarded(self, token: str) -> None:
        self._senders.pop(token, None)

    def refused(self, reason: str) -> None:
        known = reason in self._refused or len(self._refused) < MAX_REASONS
        self._refused[reason if known else "other"] += 1

    def forget(self, artifact: ArtifactId) -> None:
        """Retired, aborted or contradicted."""
        self._passages.pop(artifact, None)

    def retain(self, members: Collection[PeerId]) -> None:
        """Keep per-peer counters of members only."""
        for counter in (self._sent, self._received):
            for peer in [peer for peer in counter if peer not in members]:
                del counter[peer]

    def manifest_of(self, artifact: ArtifactId) -> Manifest | None:
        passage = self._passages.get(artifact)
        return passage.manifest if passage else None

    def snapshot(self, have: Callable[[ArtifactId], int]) -> dict[str, Any]:
        """Plain values (JSON). have: the number of segments held of an artifact.

        published: payload bytes sent of artifacts that are `ours`, and the length of those finished;
        their quotient is the number of origin copies.
        """
        newest = sorted(self._passages.values(), key=lambda passage: -passage.manifest.header.seq)[:SHOWN_ARTIFACTS]
        return {
            **self._totals,
            "segments": dict(self._segments),
            "published": dict(self._published),
            "up_rate": self._up.total(),
            "down_rate": self._down.total(),
            "peers": [self._peer(peer) for peer in sorted(self._peers())],
            "artifacts": [passage.snapshot(have(passage.manifest.artifact)) for passage in newest],
            "refused": dict(self._refused),
            "ban_reasons": dict(self._ban_reasons),
        }

    def _peers(self) -> set[PeerId]:
        return {*self.linked, *self._sent, *self._received}

    def _peer(self, peer: PeerId) -> dict[str, Any]:
        link = self.linked.get(peer)
        return {
            "peer": peer,
            "linked": link is not None,
            "dialled": link is not None and link.dialled,
            "address": link.address if link else "",
            "rtt_ms": round(link.rtt_seconds * 1000, 3) if link and link.rtt_seconds else None,
            "lanes": link.lanes if link else 0,
            "sent_bytes": self._sent[peer],
            "received_bytes": self._received[peer],
            "up_rate": self._up.of(peer),
            "down_rate": self._down.of(peer),
        }

    def _sent_out(self, event: ev.SegmentOut) -> None:
        self._sent[event.peer] += event.length
        self._totals["sent_bytes"] += event.length
        self._segments["sent"] += 1
        passage = self._passages.get(event.artifact)
        if passage is not None:
            passage.sent_bytes += event.length
            if passage.ours:
                self._published["sent_bytes"] += event.length
