"""Regions, as the roster gives them, and who of a region should take a segment in from outside.

Between regions there are oceans: a segment should cross each of them once. So every segment has an order of the members
of a region, the same for everybody with the same roster (rendezvous hashing: weighted, no two segments alike), and the
first of them that is linked and well is its gateway. Members on probation never are.

A swarm of one region, or a roster that does not name us, has no oceans: everybody is near.
It covers neither who is linked nor who behaves: callers pass candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from math import log

from blake3 import blake3

from aurora_p2p.swarm.link import MAX_CLAIMED_RATE, UNKNOWN_RATE
from aurora_p2p.swarm.roster import Peer, RosterView
from aurora_p2p.types import ArtifactId, PeerId

UNREACHABLE_SHARE = 0.3
"""Of its claim that a member behind a NAT counts with: it has only the links that it opened itself."""
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


class Geography:
    """Where we are, where the others are."""

    def __init__(self, me: PeerId) -> None:
        self.me = me
        self.home: int | None = None
        """Our region; None where there are no oceans to mind."""
        self.alone = False
        """Nobody else of our region could be a gateway."""
        self.neighbours = 0
        """How many others are in our region; 0 where there are no oceans."""
        self.abroad: frozenset[int] = frozenset()
        """The other regions."""
        self._peers: dict[PeerId, Peer] = {}

    def take(self, roster: RosterView) -> None:
        """A newer roster is in force."""
        self._peers = roster.peers
        mine = roster.peers.get(self.me)
        crowd = Counter(peer.region for peer in roster.peers.values())
        self.home = mine.region if mine is not None and len(crowd) > 1 else None
        self.neighbours = crowd[self.home] - 1 if self.home is not None else 0
        self.abroad = frozenset(crowd) - {self.home} if self.home is not None else frozenset()
        others = (peer for name, peer in roster.peers.items() if name != self.me and not peer.probation)
        self.alone = self.home is not None and all(peer.region != self.home for peer in others)

    def region_of(self, peer: PeerId) -> int | None:
        """None for hosts, and for whoever our roster does not name."""
        member = self._peers.get(peer)
        return member.region if member else None

    def is_across(self, peer: PeerId) -> bool:
        """Whether an ocean lies between us."""
        region = self.region_of(peer)
        return self.home is not None and region is not None and region != self.home

    def on_probation(self, peer: PeerId) -> bool:
        member = self._peers.get(peer)
        return member is not None and member.probation

    def reach_of(self, peer: PeerId) -> float:
        """Share of a claim that counts: 1 for whoever can be dialled or is not in the roster."""
        member = self._peers.get(peer)
        return 1.0 if member is None or member.record.bulk else UNREACHABLE_SHARE

    def order(self, artifact: ArtifactId, index: int, candidates: Iterable[PeerId]) -> list[PeerId]:
        """Who should be the gateway of a segment, the first choice first, without members on probation."""
        able = [peer for peer in candidates if not self.on_probation(peer)]
        return sorted(able, key=lambda peer: (self._distance(artifact, index, peer), peer))

    def _distance(self, artifact: ArtifactId, index: int, peer: PeerId) -> float:
        word = _mix(_key(artifact, peer) ^ (index * _GOLDEN & _WORD))
        return -log((word + 1) / (1 << 64)) / self._weight(peer)

    def _weight(self, peer: PeerId) -> float:
        """Upload as far as a claim is believed: whoever claims more is not chosen more often."""
        member = self._peers.get(peer)
        claimed = member.record.up_kbps * 125.0 if member else 0.0
        rate = min(claimed or UNKNOWN_RATE, MAX_CLAIMED_RATE)
        return rate * self.reach_of(peer)


@lru_cache(maxsize=8192)
def _key(artifact: ArtifactId, peer: PeerId) -> int:
    return int.from_bytes(blake3(artifact + peer.encode()).digest(length=8), "little")


def _mix(word: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every bit of the result depends on every bit."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31
