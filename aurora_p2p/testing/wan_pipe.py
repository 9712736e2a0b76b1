"""One direction of an emulated long path: a bounded queue before a link of some rate, then the time of flight.

Sans-IO: the clock is an argument. A packet waits for those before it (first in, first out), leaves the link when its
last byte has left, and is due `delay_seconds` after that. A packet that finds more than `queue_bytes` before it is
dropped at the tail, as by a router. Packets are whole IP packets and their headers count, so the payload of full TCP
segments gets 1448 / 1500 of the rate.

It loses nothing else and never reorders; random loss is the business of iptables in the receiving namespace.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pipe:
    """`take` packets, `due` gives them back in order. rate: bytes per second."""

    rate: float
    delay_seconds: float
    queue_bytes: int
    passed: int = 0
    passed_bytes: int = 0
    """Packets let through, and their bytes."""
    dropped: int = 0
    _clear_at: float = 0.0
    """When the link has sent everything it has taken."""
    _flying: deque[tuple[float, bytes]] = field(default_factory=deque)

    def take(self, packet: bytes, *, now: float) -> None:
        """A packet at the head of the path. Drops it when the queue is full."""
        begins = self._clear_at if self._clear_at > now else now
        if (begins - now) * self.rate > self.queue_bytes:
            self.dropped += 1
            return
        self._clear_at = begins + len(packet) / self.rate
        self._flying.append((self._clear_at + self.delay_seconds, packet))
        self.passed += 1
        self.passed_bytes += len(packet)

    def due(self, *, now: float) -> list[bytes]:
        """The packets that have arrived by now, in order."""
        flying, arrived = self._flying, list[bytes]()
        while flying and flying[0][0] <= now:
            arrived.append(flying.popleft()[1])
        return arrived

    def next_deadline(self) -> float:
        """When the next packet arrives, on the clock of `now`; infinity when none is on its way."""
        return self._flying[0][0] if self._flying else float("inf")
