"""Connections of the simulated network: windows, order, and links of one or several of them.

    Pipe (one direction of a link)  --parcels-->  Lane (a TCP connection)  --quanta-->  Uplink  --delay-->
    Servers (cuts, where there are some; the downlink)  -->  the receiver, and an acknowledgement one delay later

A segment travels whole on one lane, the one that has been idle longest. On a link of one lane a control frame
overtakes segments that have not started and waits for the one that has; on a link of several the first lane carries
control frames alone. Control frames wait for no window. What travels on one lane arrives in order.

The window of a lane starts at ten packets, doubles each round trip while it is used and no queue is seen, stays while
there is one, shrinks when the queue is long, is bounded by what the send buffer and loss allow (topology.py), and is
halved for each time-out of silence. Lost packets, and their repetition, are not modelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from aurora_p2p.testing.timeline import Timeline
from aurora_p2p.testing.topology import RTO_SECONDS, Window
from aurora_p2p.testing.wires import Hop, Server, Uplink

QUANTUM = 64 * 1024
"""Bytes of a segment that a capacity serves at a time: a quarter of a segment of 256 KiB. With half of it there
are 1.5 times as many events, and the figures are the same within 1 % (4 x 8 nodes, 256 MiB)."""
QUEUE_SEEN = 0.5
"""A round trip that is longer by this share of the path's own, and by PATIENCE_QUANTA at the slowest capacity, has met
a queue."""
PATIENCE_QUANTA = 8
QUEUE_LONG = 2.0
"""So many times that much is a queue that makes the window shrink."""
SHRINK = 0.7
"""As CUBIC does (RFC 9438)."""


@dataclass(slots=True)
class Parcel:
    """A segment on its way. size: bytes with everything around it; token: whatever the sender knows it by."""

    content: Any
    size: int
    token: Any


class Ends(Protocol):
    """What a Pipe tells its two ends."""

    def left(self, pipe: Pipe, token: Any) -> None:
        """The last byte of a parcel has left the sender."""
        ...

    def control_in(self, pipe: Pipe, content: Any) -> bool:
        """A control frame arrived. False when the receiver is gone."""
        ...

    def parcel_in(self, pipe: Pipe, parcel: Parcel) -> bool: ...

    def is_there(self, pipe: Pipe) -> bool:
        """Whether the receiver still acknowledges."""
        ...


class Pipe:
    """One direction of a link between two nodes, `source` and `target`."""

    def __init__(
        self,
        timeline: Timeline,
        ends: Ends,
        nodes: tuple[Any, Any],
        path: tuple[Uplink, float, tuple[Server, ...]],
        lanes: int,
        window: Window,
    ) -> None:
        """path: the uplink, seconds one way, the capacities after that. lanes: of several, the first is control's."""
        self.timeline, self.ends = timeline, ends
        self.source, self.target = nodes
        self.uplink, self.delay, self.servers = path
        self.closed = False
        self._queue: deque[Parcel] = deque()
        self._held: deque[tuple[Any, int]] = deque()
        self._lanes = [Lane(self, window) for _ in range(max(lanes - 1, 1))]
        self._idle = deque(self._lanes)
        """Lanes without a parcel, the one first that has been without for longest, as in net/outbound.py."""
        self.several = lanes > 1
        """Control frames have a lane of their own, and segments overtake each other."""

    def send_control(self, content: Any, size: int) -> None:
        if self.closed:
            return
        if self.several or self._lanes[0].parcel is None:
            self._control(content, size)
        else:
            self._held.append((content, size))

    def send(self, parcel: Parcel) -> None:
        if self.closed:
            return
        self._queue.append(parcel)
        if self._idle:
            self._idle.popleft().begin(self._queue.popleft())

    def cancel(self, unwanted: Callable[[Any], bool]) -> None:
        """Forget the parcels not begun whose tokens are unwanted."""
        self._queue = deque(parcel for parcel in self._queue if not unwanted(parcel.token))

    def close(self) -> None:
        """Nothing more leaves; what has left arrives."""
        self.closed = True
        self._queue.clear()
        self._held.clear()

    def following(self, lane: Lane) -> Parcel | None:
        """The next one for a lane that has none; it is idle when there is none."""
        if self._queue:
            return self._queue.popleft()
        self._idle.append(lane)
        return None

    def finished(self, parcel: Parcel) -> None:
        """A lane has sent this one."""
        self.ends.left(self, parcel.token)
        while self._held and not self.closed:
            self._control(*self._held.popleft())

    def _control(self, content: Any, size: int) -> None:
        self.timeline.at(self.uplink.control(size) + self.delay, self._control_there, content, size)

    def _control_there(self, content: Any, size: int) -> None:
        for server in self.servers:
            server.owe(size)
        if self.several:
            self.ends.control_in(self, content)
        else:
            self._lanes[0].arrive(0, content)


class Lane:
    """One TCP connection of a Pipe, with at most one parcel begun."""

    __slots__ = (
        "_acks",
        "_base",
        "_blocked",
        "_cools",
        "_first",
        "_inflight",
        "_least",
        "_limit",
        "_patience",
        "_pipe",
        "_queued",
        "_rest",
        "_sent_at",
        "_shrunk_at",
        "_window",
        "parcel",
    )

    def __init__(self, pipe: Pipe, window: Window) -> None:
        self.parcel: Parcel | None = None
        self._pipe = pipe
        self._rest = self._inflight = 0
        self._least, self._limit, self._cools = window.start, window.limit, window.cools
        self._window = window.start
        self._acks: deque[tuple[float, int, float]] = deque()
        """(when it arrives, bytes, seconds from sending to that) in order."""
        slowest = min(pipe.uplink.rate, *(server.rate for server in pipe.servers))
        self._base = 2 * pipe.delay + QUANTUM / slowest
        self._patience = max(self._base * QUEUE_SEEN, PATIENCE_QUANTA * QUANTUM / slowest)
        self._sent_at = self._shrunk_at = pipe.timeline.now
        self._queued = self._blocked = False
        self._first: Hop | None = None

    def begin(self, parcel: Parcel) -> None:
        self.parcel, self._rest = parcel, parcel.size
        self._cool()
        self._wake()

    # -- Sender

    def take(self, now: float) -> int:
        self._queued = False
        if self.parcel is None or self._pipe.closed:
            return 0
        self._collect(now)
        room = self._window - self._inflight
        least = min(self._rest, QUANTUM, self._window / 4)
        if self._inflight and room < least:
            self._block()
            return 0
        return max(min(self._rest, QUANTUM, int(room)), int(least), 1)

    def sent(self, quantum: int) -> bool:
        pipe, parcel = self._pipe, self.parcel
        if pipe.closed or parcel is None:
            return False
        now = pipe.timeline.now
        self._sent_at = now
        self._inflight += quantum
        self._rest -= quantum
        if self._rest > 0:
            pipe.timeline.at(now + pipe.delay, self.arrive, quantum, now)
        else:
            pipe.timeline.at(now + pipe.delay, self.arrive, quantum, (now, parcel))
            self.parcel = pipe.following(self)
            self._rest = self.parcel.size if self.parcel else 0
            pipe.finished(parcel)
        if self._queued or self.parcel is None:  # queued: it was given a parcel when the last one had left
            return False
        self._queued = True
        return True

    # -- the far end

    def arrive(self, size: int, item: Any) -> None:
        """A quantum reaches the first capacity after the delay, or (size 0) a control frame."""
        if self._first is None:
            self._first = self._hops()
        self._first.server.offer(self._first, size, item)

    def _hops(self) -> Hop:
        forward: Callable[[int, Any], None] = self._there
        first: Hop | None = None
        for server in reversed(self._pipe.servers):
            first = Hop(server, forward)
            forward = _offer_to(first)
        if first is None:
            raise ValueError("a pipe ends in a downlink")
        return first

    def _there(self, size: int, item: Any) -> None:
        pipe = self._pipe
        if size == 0:
            pipe.ends.control_in(pipe, item)
            return
        if isinstance(item, tuple):
            sent_at, parcel = item
            present = pipe.ends.parcel_in(pipe, parcel)
        else:
            sent_at, present = item, pipe.ends.is_there(pipe)
        if present:
            at = pipe.timeline.now + pipe.delay
            self._acks.append((at, size, at - sent_at))
            if self._blocked:
                self._block()

    # -- the window

    def _wake(self) -> None:
        if not self._queued and self.parcel is not None and not self._pipe.closed:
            self._queued = True
            self._pipe.uplink.ready(self)

    def _block(self) -> None:
        """Come back with the next acknowledgement, when it is known."""
        self._blocked = not self._acks
        if self._acks:
            self._pipe.timeline.at(max(self._acks[0][0], self._pipe.timeline.now), self._wake)

    def _collect(self, now: float) -> None:
        acks = self._acks
        while acks and acks[0][0] <= now:
            at, size, seconds = acks.popleft()
            used = 2 * self._inflight > self._window
            self._inflight -= size
            queue = seconds - self._base
            if queue <= self._patience:
                if used:
                    self._window = min(self._window + size, self._limit)
            elif queue > QUEUE_LONG * self._patience and at - self._shrunk_at > seconds:
                self._shrunk_at = at
                self._window = max(self._window * SHRINK, self._least)

    def _cool(self) -> None:
        """RFC 2861: half the window for each time-out of silence."""
        now = self._pipe.timeline.now
        self._collect(now)
        timeout = RTO_SECONDS + self._base
        silent = now - self._sent_at
        while self._cools and silent > timeout and self._window > self._least and not self._inflight:
            self._window = max(self._window / 2, self._least)
            silent -= timeout


def _offer_to(hop: Hop) -> Callable[[int, Any], None]:
    return lambda size, item: hop.server.offer(hop, size, item)
