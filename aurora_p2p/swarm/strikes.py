"""Local bans: who sent bytes that failed their hash or a page that failed its signature.

TLS says who sent a segment, so one bad segment is enough, and it is nobody else's business: bans are never gossiped (a
corrupter would otherwise convict honest peers). Each further ban is longer. Stalls never ban; they are counted by the
link (link.py), and remembered here while there is none: to dial anew makes nobody trusted.
"""

from __future__ import annotations

from aurora_p2p.types import PeerId

FIRST_BAN_SECONDS = 60.0
BAN_GROWTH = 4.0
MAX_BAN_SECONDS = 86_400.0
MAX_REMEMBERED = 1024
"""As many peers as a roster may name."""


class Strikes:
    """Bans and stalls of this process, by peer."""

    def __init__(self) -> None:
        self._bans: dict[PeerId, tuple[int, float]] = {}
        """Peer -> (bans so far, end of the last one)."""
        self._stalls: dict[PeerId, int] = {}

    def ban(self, peer: PeerId, now: float) -> float:
        """Ban once more; returns the seconds."""
        count, _ = self._bans.pop(peer, (0, 0.0))
        seconds = min(FIRST_BAN_SECONDS * BAN_GROWTH ** min(count, 16), MAX_BAN_SECONDS)
        if len(self._bans) >= MAX_REMEMBERED:
            del self._bans[next(iter(self._bans))]
        self._bans[peer] = (count + 1, now + seconds)
        return seconds

    def count(self, peer: PeerId) -> int:
        """Bans of this peer so far."""
        return self._bans.get(peer, (0, 0.0))[0]

    def banned(self, now: float) -> frozenset[PeerId]:
        """Who is banned now."""
        return frozenset(peer for peer, (_, until) in self._bans.items() if until > now)

    def stall(self, peer: PeerId, count: int) -> None:
        """The link to a peer that stalled so often without a delivery is gone; 0 forgets it."""
        self._stalls.pop(peer, None)
        if count:
            if len(self._stalls) >= MAX_REMEMBERED:
                del self._stalls[next(iter(self._stalls))]
            self._stalls[peer] = count

    def stalls(self, peer: PeerId) -> int:
        """What is remembered of that."""
        return self._stalls.get(peer, 0)

    def is_banned(self, peer: PeerId, now: float) -> bool:
        return self._bans.get(peer, (0, float("-inf")))[1] > now
