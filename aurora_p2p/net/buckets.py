"""One rate cap shared fairly by many connections: a token bucket with a round-robin queue.

A taker is in the queue or it is not. Only the head of the queue is granted tokens; a grant removes it from the queue
and wakes the next head, so connections take turns of one quantum each. Urgent takers (control frames) pass the queue
but are counted: what they take, segments wait for.

Over any window of t seconds at most rate * t + burst bytes are granted, burst being 1/32 s of the rate. A taker that
stops wanting must `leave`, or it would hold up the others. Thread-safe; `now` is an argument; no thread of its own.
"""

from __future__ import annotations

import threading
from typing import Protocol

QUANTUM_MIN, QUANTUM_MAX = 512, 1 << 16
"""Bytes of one grant: small enough that a cap of 100 KB/s is smooth, large enough that a fast one costs no CPU."""


class Taker(Protocol):
    def wake(self) -> None:
        """Called, under the bucket's lock, when this taker has become the head of the queue."""


class Bucket:
    """rate: bytes per second, 0 = no cap."""

    def __init__(self, rate: int, now: float) -> None:
        self._lock = threading.Lock()
        self._queue: dict[Taker, None] = {}
        self._filled_at = now
        self.set_rate(rate, now)

    def set_rate(self, rate: int, now: float) -> None:
        with self._lock:
            self.rate = rate
            self._quantum = min(max(rate // 64, QUANTUM_MIN), QUANTUM_MAX)
            self._burst = float(max(rate // 32, self._quantum))
            self._tokens, self._filled_at = 0.0, now
            for taker in self._queue:
                taker.wake()

    def take(self, taker: Taker, want: int, now: float, *, urgent: bool = False) -> tuple[int, float]:
        """(bytes granted now, 0 when none; then the time to ask again, or infinity: `wake` will be called)."""
        with self._lock:
            if not self.rate:
                self._queue.pop(taker, None)
                return want, now
            self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self.rate)
            self._filled_at = now
            granted = min(want, self._quantum)
            if not urgent:
                self._queue.setdefault(taker)
                if next(iter(self._queue)) is not taker:
                    return 0, float("inf")
            missing = (0 if urgent else granted) - self._tokens
            if missing >= 1:  # less than a byte is not worth a wait that rounds to nothing
                return 0, now + missing / self.rate
            self._tokens -= granted
            if not urgent:
                self._dequeue(taker)
            return granted, now

    def refund(self, count: int) -> None:
        """Give back what was granted and not used."""
        with self._lock:
            self._tokens = min(self._burst, self._tokens + count)

    def leave(self, taker: Taker) -> None:
        """Stop waiting."""
        with self._lock:
            if taker in self._queue:
                self._dequeue(taker)

    def _dequeue(self, taker: Taker) -> None:
        del self._queue[taker]
        head = next(iter(self._queue), None)
        if head is not None:
            head.wake()
