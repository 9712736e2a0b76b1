"""Capacities of the simulated network, shared in turn.

Segments move in quanta: every capacity takes one quantum of each busy connection in turn, so connections share it
fairly and it is never idle while one waits. Control frames go ahead of quanta: their bytes take time, but no place in
a turn.

    Uplink    a node's sending: control frames first, then whatever lanes (lanes.py) have to send and may
    Server    what comes after it on the way: a cut between regions, a downlink
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from aurora_p2p.testing.timeline import Timeline


class Sender(Protocol):
    """What an Uplink serves."""

    def take(self, now: float) -> int:
        """The next bytes to send, or 0: nothing, or not now (then it comes back by itself)."""
        ...

    def sent(self, quantum: int) -> bool:
        """They have left. Whether to be served again."""
        ...


class Hop:
    """What one connection has waiting at one Server; the first item is being served."""

    __slots__ = ("forward", "items", "server")

    def __init__(self, server: Server, forward: Callable[[int, Any], None]) -> None:
        self.server, self.forward = server, forward
        self.items: deque[tuple[int, Any]] = deque()


class Server:
    """A capacity, bytes/s, that serves the connections with something waiting in turn."""

    def __init__(self, timeline: Timeline, rate: float) -> None:
        self.rate = rate
        self._timeline = timeline
        self._ring: deque[Hop] = deque()
        self._busy = False
        self._owed = 0

    def offer(self, hop: Hop, size: int, item: Any) -> None:
        """Serve `size` bytes, then forward. Size 0 is a control frame: it only keeps its place."""
        items = hop.items
        if items:
            items.append((size, item))
        elif size == 0:
            hop.forward(0, item)
        else:
            items.append((size, item))
            self._ring.append(hop)
            if not self._busy:
                self._start()

    def owe(self, size: int) -> None:
        """Control bytes passed: the next quantum takes so much longer."""
        if self._busy:
            self._owed += size

    def _start(self) -> None:
        self._busy = True
        hop = self._ring.popleft()
        size = hop.items[0][0] + self._owed
        self._owed = 0
        self._timeline.at(self._timeline.now + size / self.rate, self._done, hop)

    def _done(self, hop: Hop) -> None:
        items = hop.items
        hop.forward(*items.popleft())
        while items and items[0][0] == 0:
            hop.forward(*items.popleft())
        if items:
            self._ring.append(hop)
        if self._ring:
            self._start()
        else:
            self._busy = False


class Uplink:
    """A node's capacity to send: control frames first, then the lanes that have a quantum and a window, in turn."""

    def __init__(self, timeline: Timeline, rate: float) -> None:
        self.rate = rate
        self.control_bytes = 0
        self._timeline = timeline
        self._ring: deque[Sender] = deque()
        self._busy_until = 0.0
        self._busy = False
        self._control_free = 0.0

    def control(self, size: int) -> float:
        """When `size` bytes that go first have left."""
        self.control_bytes += size
        start = max(self._timeline.now, self._control_free, self._busy_until)
        self._control_free = start + size / self.rate
        return self._control_free

    def ready(self, lane: Sender) -> None:
        """This lane has something to send; called once until its quantum has left."""
        self._ring.append(lane)
        if not self._busy:
            self._start()

    def _start(self) -> None:
        ring, now = self._ring, self._timeline.now
        while ring:
            lane = ring.popleft()
            quantum = lane.take(now)
            if quantum:
                self._busy = True
                self._busy_until = max(now, self._control_free) + quantum / self.rate
                self._timeline.at(self._busy_until, self._sent, lane, quantum)
                return
        self._busy = False

    def _sent(self, lane: Sender, quantum: int) -> None:
        if lane.sent(quantum):
            self._ring.append(lane)
        self._start()
