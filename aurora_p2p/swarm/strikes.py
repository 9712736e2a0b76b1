"""Local bans: who sent bytes that failed their hash or a page that failed its signature.

TLS says who sent a segment, so one bad segment is enough, and it is nobody else's business: bans are never gossiped (a
corrupter would otherwise convict honest peers). Each further ban is longer. Stalls never ban; they are counted per
artifact in picker.py.
"""

from __future__ import annotations

from aurora_p2p.types import PeerId

FIRST_BAN_SECONDS = 60.0
BAN_GROWTH = 4.0
MAX_BAN_SECONDS = 86_400.0
MAX_REMEMBERED = 1024
"""As many peers as a roster may name."""


class Strikes:
    """Bans of this process, by peer."""

    def __init__(self) -> None:
        self._bans: dict[PeerId, tuple[int, float]] = {}
        """Peer -> (bans so far, end of the last one)."""

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

    def is_banned(self, peer: PeerId, now: float) -> bool:
        return self._bans.get(peer, (0, float("-inf")))[1] > now
