"""Tokens per second of the last minutes, for a sparkline: counts fall into stretches of time. Bounded, no clock."""

from __future__ import annotations

from collections import deque

STRETCH_SECONDS = 2.0
"""A batch of samples arrives at once: shorter stretches would show batches, not speed."""
KEPT_STRETCHES = 180
"""Six minutes: more than the widest screen has room for."""


class RecentTokens:
    """`add` tokens as they are generated; `rates` shows whole stretches only, the running one is left out."""

    def __init__(self) -> None:
        self._counts: deque[tuple[int, int]] = deque(maxlen=KEPT_STRETCHES)
        """(number of the stretch since boot, tokens), ascending; stretches without tokens are not kept."""
        self._first: int | None = None

    def add(self, tokens: int, now: float) -> None:
        """now: seconds, never smaller than before."""
        stretch = int(now // STRETCH_SECONDS)
        self._first = stretch if self._first is None else self._first
        if self._counts and self._counts[-1][0] == stretch:
            tokens += self._counts.pop()[1]
        self._counts.append((stretch, tokens))

    def rates(self, now: float) -> list[float]:
        """Tokens per second of at most KEPT_STRETCHES stretches, oldest first, since the first token."""
        if self._first is None:
            return []
        end = int(now // STRETCH_SECONDS)
        counts = dict(self._counts)
        begin = max(self._first, end - KEPT_STRETCHES)
        return [counts.get(stretch, 0) / STRETCH_SECONDS for stretch in range(begin, end)]
