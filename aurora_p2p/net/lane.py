"""One open TLS connection of a link, owned by one thread.

    OPEN --close() | peer closes | deadline | protocol error--> CLOSED (run returns the reason)

The owner alone touches the socket: non-blocking, with a poll that also watches an eventfd, by which other threads
wake it (an SSLSocket read and written by two threads crashes or deadlocks in some CPythons: #143756, #137583).

Deadlines: a frame that has started, either way, must end within FRAME_SECONDS plus its size at the slowest rate we
tolerate; a lane on which nothing arrives for IDLE_SECONDS is dead; a keep-alive goes out after KEEP_ALIVE_SECONDS of
silence. While the daemon does not take our events we stop reading (and stop the peer's clocks), and go on writing.
"""

from __future__ import annotations

import math
import os
import select
import socket
import ssl

from aurora_p2p.errors import WireError
from aurora_p2p.local import faults
from aurora_p2p.local.clock import boottime
from aurora_p2p.net.inbound import KEEP_ALIVE, Inbound
from aurora_p2p.net.kernel import rtt_microseconds
from aurora_p2p.net.link import Link
from aurora_p2p.net.outbound import Outgoing
from aurora_p2p.wire.bulk import SegmentSent

FRAME_SECONDS = 20.0
SLOWEST_RATE = 16 * 1024
"""Bytes per second below which a peer in the middle of a frame counts as stalled."""
SHARERS = 32
"""A capped rate is assumed to be shared by at most so many busy lanes when deadlines are computed."""
IDLE_SECONDS = 60.0
KEEP_ALIVE_SECONDS = 15.0
LOOK_SECONDS = 1.0
"""Between two looks at what the kernel measured, while there is anything else to do."""
READ_BYTES = 1 << 17
"""Read in one turn, record by record (16 KiB): fits the CPU's cache, and makes turns cost little."""
PIECE_BYTES = 1 << 18
BATCH_BYTES = 1 << 16
"""To be woken for each record costs more than to decrypt it."""
SLACK_BYTES = 1 << 15
"""Of a payload, this much may be in OpenSSL's hands already: at most one record is, of 16 KiB."""


def allowance(frame_bytes: int, rate: int) -> float:
    """Seconds that a frame may take under a cap of `rate` bytes/s (0 = none)."""
    slowest = min(SLOWEST_RATE, rate / SHARERS) if rate else SLOWEST_RATE
    return FRAME_SECONDS + frame_bytes / slowest


class Lane:
    """`run` in the owner's thread; `wake` and `close` from any, until `dispose`."""

    def __init__(self, link: Link, secure: ssl.SSLSocket, *, first: bool) -> None:
        self._link, self._plane, self._first = link, link.plane, first
        self._secure = secure
        self._reason = ""
        self.broken = False
        """Whether the peer has sent what it must not."""
        down = link.plane.down
        self._inbound = Inbound(
            link.peer, link.plane.spool, link.emit, lambda size: allowance(size, down.rate), segments_only=not first
        )
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._outgoing = bytearray()
        """The segment being sent: fresh memory for each would cost a page fault for every 4 KiB."""
        self._readable = True
        self._active: Outgoing | None = None
        self._granted = 0
        now = boottime()
        self.opened_at = self._heard_at = self._spoke_at = self._turn_at = self._look_at = now
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._waker, select.POLLIN)
        self._mask = self._registered = 0
        self._low_water = 1
        self._wake_at = math.inf
        secure.setblocking(False)

    def wake(self) -> None:
        os.eventfd_write(self._waker, 1)

    def close(self, reason: str) -> None:
        self._reason = self._reason or reason
        self.wake()

    def run(self) -> str:
        """Serve the connection until it ends; returns why. The socket is closed then."""
        try:
            while not self._reason:
                self._turn(boottime())
        except WireError as error:
            self._reason, self.broken = f"protocol error: {error}", True
        except (EOFError, OSError) as error:
            self._reason = f"connection lost: {error or 'closed by the peer'}"
        self._plane.up.leave(self)
        self._plane.down.leave(self)
        self._inbound.discard()
        self._secure.close()
        if self._active is not None and self._active.segment is not None:
            self._link.outbound.requeue(self._active.segment)
        self._link.outbound.leave(self)
        return self._reason

    def dispose(self) -> None:
        """After `run`, when no other thread can reach this lane any more."""
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
        if now >= self._look_at and self._first:
            self._link.rtt_microseconds, self._look_at = rtt_microseconds(self._secure), now + LOOK_SECONDS
        if now >= self._inbound.deadline:
            self.close("a frame from the peer took too long")
        elif self._active is not None and now >= self._active.deadline:
            self.close("the peer does not read")
        elif now >= self._heard_at + IDLE_SECONDS:
            self.close(f"nothing was heard for {IDLE_SECONDS:.0f} s")

    def _write(self, now: float) -> bool:
        frame = self._active or self._begin(now)
        if frame is None or not self._grant(frame, now):
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
            self._plane.up.refund(self._granted)
            self._granted = 0
            self._report(frame)
        return True

    def _begin(self, now: float) -> Outgoing | None:
        """The next frame to send; a segment leaves its queue, where it can be cancelled, once there are tokens."""
        outbound, up = self._link.outbound, self._plane.up
        control = outbound.take_control() if self._first else None
        if control is None and now >= self._spoke_at + KEEP_ALIVE_SECONDS:
            control = memoryview(KEEP_ALIVE)
        if control is not None:
            self._active = Outgoing(control)
            return self._active
        if self._first and not self._link.alone:
            outbound.leave(self)
            return None
        size = outbound.offered(self)
        if not size:
            up.leave(self)
            return None
        if not self._granted:
            self._granted, again_at = up.take(self, min(size, PIECE_BYTES), now)
            if not self._granted:
                self._wake_at = min(self._wake_at, again_at)
                return None
        self._active = outbound.take_segment(self._outgoing)
        if self._active is None:  # another lane has it, or it was cancelled
            up.refund(self._granted)
            self._granted, self._wake_at = 0, now
        return self._active

    def _grant(self, frame: Outgoing, now: float) -> bool:
        """Whether tokens for some of the frame are there."""
        if not self._granted:
            want = min(len(frame.rest), PIECE_BYTES)
            self._granted, again_at = self._plane.up.take(self, want, now, urgent=frame.segment is None)
            if not self._granted:
                self._wake_at = min(self._wake_at, again_at)
                return False
        if frame.deadline == math.inf:
            frame.deadline = now + allowance(len(frame.rest), self._plane.up.rate)
        return True

    def _report(self, frame: Outgoing) -> None:
        command = frame.segment
        if command is not None:
            waiting = self._link.outbound.waiting
            self._link.emit(SegmentSent(command.peer, command.artifact, command.index, command.length, waiting))

    def _read(self, now: float) -> bool:
        if self._plane.congested:
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
            faults.wire("in", self._buffer[:count])
            self._inbound.feed(self._buffer[:count], now)
        return count > 0

    def _receive(self, limit: int) -> int:
        """Bytes read into the buffer, 0 when none are there. Raises EOFError at the end of the stream."""
        count = 0
        try:
            while count < limit and (got := self._secure.recv_into(self._buffer[count:limit])):
                count += got
        except ssl.SSLWantReadError:
            self._readable = False
            self._mask |= select.POLLIN
            return count
        except ssl.SSLWantWriteError:
            self._mask |= select.POLLOUT
            return count
        except OSError:
            if not count:
                raise
        if not count:
            raise EOFError
        return count

    def _sleep(self, now: float) -> None:
        self._set_low_water()
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

    def _set_low_water(self) -> None:
        """In the middle of a payload, sleep until a good part of the rest is there; never for more than must come."""
        wanted = min(self._inbound.missing - SLACK_BYTES, BATCH_BYTES)
        low_water = wanted if wanted >= SLACK_BYTES else 1
        if low_water != self._low_water:
            self._secure.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
            self._low_water = low_water
