"""A queue whose producers wait before they produce more, not while they put.

A machine's effects come in bursts that must all be queued at once; whoever caused them then waits for `room`. So a
backlog holds at most `limit` items plus the effects of one event for each task that feeds.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Backlog(Generic[T]):
    """One task takes (`take`, or `async for`); any task may put."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[T] = deque()
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def full(self) -> bool:
        return len(self._items) >= self._limit

    def put(self, item: T) -> None:
        self._items.append(item)
        self._notify()

    def clear(self) -> None:
        self._items.clear()
        self._notify()

    async def take(self, most: int = 1) -> list[T]:
        """At least one item, at most so many."""
        while not self._items:
            await self._changed.wait()
        taken = [self._items.popleft() for _ in range(min(most, len(self._items)))]
        self._notify()
        return taken

    async def room(self) -> None:
        """Return when fewer than `limit` items wait. No checkpoint when they do."""
        while self.full:
            await self._changed.wait()

    def __aiter__(self) -> Backlog[T]:
        return self

    async def __anext__(self) -> T:
        return (await self.take())[0]

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
