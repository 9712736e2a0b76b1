"""Simulated time: what happens, in order of time, and among equals in the order in which it was planned."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class BudgetError(RuntimeError):
    """More happened than the caller allowed: a run that does not end is a finding, not a long wait."""


class Timeline:
    """`now` in simulated seconds; `happened` counts events."""

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = 0
        self._planned = 0
        self._halted = False
        self._queue: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []

    def at(self, time: float, action: Callable[..., Any], *args: Any) -> None:
        """Call `action(*args)` at `time`, which is not in the past."""
        self._planned += 1
        heapq.heappush(self._queue, (time, self._planned, action, args))

    def halt(self) -> None:
        """End `run` after the present event."""
        self._halted = True

    def run(self, until: float, stop: Callable[[], bool] | None = None, *, budget: float = float("inf")) -> None:
        """Let events happen up to a time, or until `stop()` or `halt()`. Raises BudgetError after `budget` events."""
        queue, pop, last = self._queue, heapq.heappop, self.happened + budget
        self._halted = False
        while queue and queue[0][0] <= until and not (stop is not None and stop()):
            self.now, _, action, args = pop(queue)
            self.happened += 1
            action(*args)
            if self._halted:
                return
            if self.happened > last:
                raise BudgetError(f"{budget:.0f} events by {self.now:.3f} s of simulated time")
