"""How many segments to have with the driver at a time: few while our uplink is busy, more while it is not.

Few, because a segment is passed on only when it is whole: of eight sent side by side, none arrives before all do. More,
because one connection does not fill an uplink: TCP begins with ten packets per round trip, so a quarter of a megabyte
takes half a second over an ocean, and four such segments would leave a fast uplink idle.

    busy (bytes that left lately >= BUSY of the best)    MIN_PLACES in all
    not busy                                             MIN_PLACES of those younger than what they should take

The best is what we have seen leave, at first what the owner offers; it fades, so that a slower line is noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from aurora_p2p.swarm.link import Sending

MIN_PLACES = 4
"""Enough to keep a socket busy over the pipe to the bulk child, few enough that a segment is complete, and can be
passed on, soon after it was begun."""
MAX_PLACES = 128
MAX_QUEUE_SECONDS = 0.3
"""As much as our uplink sends in this time may be with the driver, if that is more than FEWEST_MORE segments: the harm
that a wrong estimate can do."""
FEWEST_MORE = 8
BUSY = 0.95
PATIENCE = 1.5
"""A segment that takes so many times what it would take with MIN_PLACES is held up elsewhere than in our uplink."""
WINDOW_SECONDS = 0.05
WINDOW_SEGMENTS = 8
FADING_SECONDS = 5.0
"""The best halves in this time of sending."""


class Places:
    def __init__(self, bytes_per_second: float) -> None:
        self.best = bytes_per_second
        """Bytes/s that our uplink is taken to carry."""
        self._left: deque[tuple[float, int]] = deque()
        self._recent = 0
        self._faded_at = float("-inf")

    def left(self, count: int, now: float) -> None:
        """`count` bytes have left for the kernel."""
        gap = min(now - self._faded_at, FADING_SECONDS / 10)
        self.best *= 0.5 ** (max(gap, 0.0) / FADING_SECONDS)
        self._faded_at = now
        self._left.append((now, count))
        self._recent += count
        self.best = max(self.best, self._rate(count, now))

    def free(self, sending: Sequence[Sending], now: float) -> int:
        """How many more segments to hand over."""
        if not sending:
            return MIN_PLACES
        size = max(one.length for one in sending)
        if self._rate(size, now) >= BUSY * self.best:
            return MIN_PLACES - len(sending)
        since = now - self._patience(size)
        return MIN_PLACES - sum(one.since > since for one in sending)

    def held_up(self, sending: Sequence[Sending], now: float) -> bool:
        """Whether so many are held up elsewhere that no link with one of them should get more."""
        if not sending:
            return False
        size = max(one.length for one in sending)
        most = min(max(FEWEST_MORE, int(self.best * MAX_QUEUE_SECONDS / size)), MAX_PLACES)
        return len(sending) >= most

    def is_late(self, one: Sending, now: float) -> bool:
        """Whether it takes longer than our uplink is to blame for."""
        return now >= one.since + self._patience(one.length)

    def next_deadline(self, sending: Iterable[Sending], now: float) -> float:
        """When a segment under way will not count any more."""
        return min(
            (at for one in sending if (at := one.since + self._patience(one.length)) > now), default=float("inf")
        )

    def _patience(self, size: int) -> float:
        return PATIENCE * MIN_PLACES * size / self.best

    def _rate(self, size: int, now: float) -> float:
        window = max(WINDOW_SECONDS, WINDOW_SEGMENTS * size / self.best)
        while self._left and self._left[0][0] <= now - window:
            self._recent -= self._left.popleft()[1]
        return self._recent / window
