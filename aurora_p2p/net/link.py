"""One link to one peer: one or more TLS connections, its lanes, seen as one by everybody else.

    OPEN --the first lane ends--> CLOSED (LinkClosed is the last event of it)

The first lane opened the link and carries all control frames, which keep their order. The others carry segments, each
whole on one of them, so that none waits for a loss on another, and control frames never wait behind segments; a link
with one lane carries both on it. A further lane that ends costs what was in the kernel's buffers: the segment that it
was in the middle of goes over another one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from aurora_p2p.local.clock import boottime
from aurora_p2p.net.buckets import Bucket
from aurora_p2p.net.outbound import Outbound
from aurora_p2p.net.spool import Spool
from aurora_p2p.types import PeerId
from aurora_p2p.wire.bulk import BulkEvent, LinkClosed, LinkOpened, SegmentArrived


class Events(Protocol):
    """Where events go; `congested` while the daemon is slow to take them."""

    congested: bool

    def put(self, event: BulkEvent) -> None: ...


class Connection(Protocol):
    """A lane, as its link sees it."""

    def wake(self) -> None: ...
    def close(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Plane:
    """What all links of the process share."""

    events: Events
    spool: Spool
    up: Bucket
    down: Bucket

    @property
    def congested(self) -> bool:
        """Whether the daemon must catch up before we read more."""
        return self.events.congested or self.spool.full


class Link:
    """name: the nonce of its first connection. `lanes` and `wanted` change under the lock of links.Links."""

    def __init__(self, peer: PeerId, name: bytes, address: str, plane: Plane, *, dialled: bool) -> None:
        self.peer, self.name, self.address, self.plane, self.dialled = peer, name, address, plane, dialled
        self.outbound = Outbound(self.emit)
        self.lanes: list[Connection] = []
        """The open ones, the first lane first."""
        self.joining = 0
        """Lanes whose handshake is under way."""
        self.wanted = 1
        self.opening = False
        """Whether a thread opens what is lacking."""
        self.short_lives = 0
        """Lanes in a row that ended soon, or did not open."""
        self.rtt_microseconds = 0
        """Of the first lane, as the kernel last told; 0: unknown."""
        self.opened_at = boottime()
        self.closed = False
        self._gate = threading.Lock()
        plane.events.put(LinkOpened(peer, address, dialled))

    @property
    def alone(self) -> bool:
        """Whether the first lane must carry segments as well."""
        return len(self.lanes) == 1

    def emit(self, event: BulkEvent) -> None:
        """Report an event of this link, unless it has ended."""
        with self._gate:
            if not self.closed:
                self.plane.events.put(event)
                return
        if isinstance(event, SegmentArrived):
            self.plane.spool.release(event.path)

    def wake(self) -> None:
        for lane in self.lanes:
            lane.wake()

    def close(self, reason: str) -> None:
        """Ask for the end; it has come when the owner of the first lane says so."""
        if self.lanes:
            self.lanes[0].close(reason)

    def end(self, reason: str) -> None:
        """Nothing is reported of this link after LinkClosed."""
        with self._gate:
            self.closed = True
            self.plane.events.put(LinkClosed(self.peer, reason[:512]))
