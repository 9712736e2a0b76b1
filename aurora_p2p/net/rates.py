"""Rates out of counters: a moving average for each key, fed with totals and the time. No clock, no I/O."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SMOOTHING_SECONDS = 2.0
"""Time constant: a person sees a change within a second or two, and no flicker from single segments."""
NOTHING = 1.0
"""Per second: an average that has decayed below this is zero."""


class Rates(Generic[K]):
    """Counts per second. A new key starts from a total of zero; one that is gone from the totals is forgotten."""

    def __init__(self) -> None:
        self._totals: dict[K, int] = {}
        self._rates: dict[K, float] = {}
        self._at: float | None = None

    def observe(self, totals: Mapping[K, int], now: float) -> None:
        """Totals never shrink. `now` in seconds; a second look at the same moment changes nothing."""
        since = None if self._at is None else now - self._at
        if since is not None and since <= 0:
            return
        fresh: dict[K, float] = {}
        for key, total in totals.items():
            sample = max(total - self._totals.get(key, 0), 0) / since if since else 0.0
            fresh[key] = self._averaged(self._rates.get(key, 0.0), sample, since or 0.0)
        self._totals, self._rates, self._at = dict(totals), fresh, now

    def of(self, key: K) -> float:
        """0 for a key that is not known."""
        return self._rates.get(key, 0.0)

    def total(self) -> float:
        return sum(self._rates.values())

    @staticmethod
    def _averaged(known: float, sample: float, since: float) -> float:
        rate = known + (1 - math.exp(-since / SMOOTHING_SECONDS)) * (sample - known)
        return rate if rate >= NOTHING else 0.0
