"""One open TLS connection to one peer, owned by one thread.

    OPEN --close() | peer closes | deadline | protocol error--> CLOSED (run returns the reason)

The owner alone touches the socket: non-blocking, with a poll that also watches an eventfd, by which other threads
wake it (an SSLSocket read and written by two threads crashes or deadlocks in some CPythons: #143756, #137583).

Deadlines: a frame that has started, either way, must end within FRAME_SECONDS plus its size at the slowest rate we
tolerate; a link on which nothing arrives for IDLE_SECONDS is dead; a keep-alive goes out after KEEP_ALIVE_SECONDS of
silence. While the daemon does not take our events we stop reading (and stop the peer's clocks), and go on writing.
"""

from __future__ import annotations

import math
import os
import select
import ssl
from dataclasses import dataclass
from typing import Protocol

from aurora_p2p.errors import WireError
from aurora_p2p.local import faults
from aurora_p2p.local.clock import boottime
from aurora_p2p.net.buckets import Bucket
from aurora_p2p.net.inbound import KEEP_ALIVE, Inbound, Spool
from aurora_p2p.net.outbound import Outbound, Outgoing
from aurora_p2p.types import PeerId
from aurora_p2p.wire.bulk import BulkEvent, SegmentSent

FRAME_SECONDS = 20.0
SLOWEST_RATE = 16 * 1024
"""Bytes per second below which a peer in the middle of a frame counts as stalled."""
SHARERS = 32
"""A capped rate is assumed to be shared by at most so many busy links when deadlines are computed."""
IDLE_SECONDS = 60.0
KEEP_ALIVE_SECONDS = 15.0
READ_BYTES = 1 << 14
"""A TLS record: OpenSSL never returns more at once."""
PIECE_BYTES = 1 << 18


class Events(Protocol):
    """Where events go; `congested` while the daemon is slow to take them."""

    congested: bool

    def put(self, event: BulkEvent) -> None: ...


@dataclass(frozen=True, slots=True)
class Plane:
    """What all links of the process share."""

    events: Events
    spool: Spool
    up: Bucket
    down: Bucket


def allowance(frame_bytes: int, rate: int) -> float:
    """Seconds that a frame may take under a cap of `rate` bytes/s (0 = none)."""
    slowest = min(SLOWEST_RATE, rate / SHARERS) if rate else SLOWEST_RATE
    return FRAME_SECONDS + frame_bytes / slowest


class Link:
    """`run` in the owner's thread; `wake`, `close` and the queues of `outbound` from any, until `dispose`."""

    def __init__(self, peer: PeerId, secure: ssl.SSLSocket, plane: Plane) -> None:
        self.peer, self.outbound = peer, Outbound(plane.events.put)
        self._secure, self._plane = secure, plane
        self._reason = ""
        self._inbound = Inbound(peer, plane.spool, plane.events.put, lambda size: allowance(size, plane.down.rate))
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._readable = True
        self._active: Outgoing | None = None
        self._granted = 0
        now = boottime()
        self.opened_at = self._heard_at = self._spoke_at = self._turn_at = now
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._waker, select.POLLIN)
        self._mask = self._registered = 0
        self._wake_at = math.inf
        secure.setblocking(False)

    def wake(self) -> None:
        os.eventfd_write(self._waker, 1)

    def close(self, reason: str) -> None:
        self._reason = self._reason or reason
        self.wake()

    def run(self) -> str:
        """Serve the link until it ends; returns why. The socket is closed then."""
        try:
            while not self._reason:
                self._turn(boottime())
        except WireError as error:
            self._reason = f"protocol error: {error}"
        except (EOFError, OSError) as error:
            self._reason = f"connection lost: {error or 'closed by the peer'}"
        self._plane.up.leave(self)
        self._plane.down.leave(self)
        self._inbound.discard()
        self._secure.close()
        return self._reason

    def dispose(self) -> None:
        """After `run`, when no other thread can reach this link any more."""
        os.close(self._waker)

    def _turn(self, now: float) -> None:
        self._mask, self._wake_at = 0, math.inf
        self._check_deadlines(now)
        wrote = self._write(now)
        read = self._read(now)
        self._turn_at = now
        if not wrote and not read and not self._reason:
            self._sleep(now)

    def _check_deadlines(self, now: float) -> None:
        if now >= self._inbound.deadline:
            self.close("a frame from the peer took too long")
        elif self._active is not None and now >= self._active.deadline:
            self.close("the peer does not read")
        elif now >= self._heard_at + IDLE_SECONDS:
            self.close(f"nothing was heard for {IDLE_SECONDS:.0f} s")
        elif now >= self._spoke_at + KEEP_ALIVE_SECONDS and self._active is None:
            self._spoke_at = now
            self.outbound.add_control(KEEP_ALIVE)

    def _write(self, now: float) -> bool:
        frame = self._grant(now)
        if frame is None:
            return False
        try:
            # OpenSSL wants a write that did not fit repeated with the same bytes: the grant stays until it is used.
            count = self._secure.send(frame.rest[: self._granted])
        except ssl.SSLWantWriteError:
            self._mask |= select.POLLOUT
            return False
        except ssl.SSLWantReadError:
            self._readable = False
            return False
        faults.wire("out", frame.rest[:count])
        if frame.segment is not None:
            faults.reach("bulk.sending")
        frame.rest = frame.rest[count:]
        self._granted -= count
        self._spoke_at = now
        if not frame.rest:
            self._active = None
            self._report(frame)
        return True

    def _grant(self, now: float) -> Outgoing | None:
        """The frame being sent with `_granted` > 0, or None: nothing to send, or no tokens yet."""
        frame = self._active or self.outbound.next()
        if frame is None:
            self._plane.up.leave(self)
            return None
        if frame.segment is None:
            self._active = frame
        if not self._granted:
            want = min(len(frame.rest), PIECE_BYTES)
            self._granted, again_at = self._plane.up.take(self, want, now, urgent=frame.segment is None)
            self._wake_at = min(self._wake_at, again_at if not self._granted else math.inf)
        if not self._granted:
            return None
        if self._active is None and frame.segment is not None and not self.outbound.start(frame.segment):
            self._plane.up.refund(self._granted)
            self._granted = 0
            return None
        if frame.deadline == math.inf:
            frame.deadline = now + allowance(len(frame.rest), self._plane.up.rate)
        self._active = frame
        return frame

    def _report(self, frame: Outgoing) -> None:
        command = frame.segment
        if command is not None:
            sent = SegmentSent(command.peer, command.artifact, command.index, command.length, self.outbound.waiting)
            self._plane.events.put(sent)

    def _read(self, now: float) -> bool:
        if self._plane.events.congested:
            self._plane.down.leave(self)
            self._inbound.postpone(now - self._turn_at)
            self._heard_at = now
            return False
        if not self._readable:
            self._mask |= select.POLLIN
            return False
        granted, again_at = self._plane.down.take(self, READ_BYTES, now)
        if not granted:
            self._wake_at = min(self._wake_at, again_at)
            return False
        count = self._receive(granted)
        self._plane.down.refund(granted - count)
        if count:
            self._heard_at = now
            self._inbound.feed(self._buffer[:count], now)
        return count > 0

    def _receive(self, limit: int) -> int:
        """Bytes read into the buffer, 0 when none are there. Raises EOFError at the end of the stream."""
        try:
            count = self._secure.recv_into(self._buffer[:limit])
        except ssl.SSLWantReadError:
            self._readable = False
            self._mask |= select.POLLIN
            return 0
        except ssl.SSLWantWriteError:
            self._mask |= select.POLLOUT
            return 0
        if count == 0:
            raise EOFError
        faults.wire("in", self._buffer[:count])
        return count

    def _sleep(self, now: float) -> None:
        if self._mask != self._registered:
            if self._registered:
                self._poll.unregister(self._secure)
            if self._mask:  # an empty mask would still report a hang-up, again and again
                self._poll.register(self._secure, self._mask)
            self._registered = self._mask
        sent_by = self._active.deadline if self._active else self._spoke_at + KEEP_ALIVE_SECONDS
        until = min(self._wake_at, self._inbound.deadline, sent_by, self._heard_at + IDLE_SECONDS)
        for descriptor, _ in self._poll.poll(max(0, math.ceil((until - now) * 1000))):
            if descriptor == self._waker:
                os.eventfd_read(self._waker)
            else:
                self._readable = True
