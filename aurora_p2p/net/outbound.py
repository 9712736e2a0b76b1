"""The writing half of a link: what waits to be sent, over any of its lanes.

Control frames keep their order, on the first lane, and go ahead of segments that have not started. A segment goes
whole over whichever lane is free; it is read from its file and hashed just before it starts, so that bad RAM or a
rotten disk never gets an honest node banned. Filled by the command thread, emptied by the owners of the lanes.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from blake3 import blake3

from aurora_p2p.types import ArtifactId
from aurora_p2p.wire.bulk import SegmentFailed, SendFile
from aurora_p2p.wire.frame import encode_head

MAX_CONTROL_BYTES = 4 * 2**20
"""Control frames waiting for one peer. One that reads so slowly that more pile up is not worth its link."""
MAX_QUEUED_SEGMENTS = 1024
"""Segments waiting for one peer: 16 times what a machine lets one peer request."""
JOINED_BYTES = 1 << 16
"""Small control frames are sent as one TLS record."""


@dataclass(slots=True)
class Outgoing:
    """Bytes being sent. segment: the command they carry, None for control frames."""

    rest: memoryview
    segment: SendFile | None = None
    deadline: float = float("inf")


class Idle(Protocol):
    """A lane that has nothing to send."""

    def wake(self) -> None: ...


class Outbound:
    """Two bounded queues of one link."""

    def __init__(self, failed: Callable[[SegmentFailed], None]) -> None:
        self._lock = threading.Lock()
        self._control: deque[bytes] = deque()
        self._control_bytes = 0
        self._segments: deque[SendFile] = deque()
        self._idle: dict[Idle, None] = {}
        self._failed = failed

    @property
    def waiting(self) -> int:
        """Segments not yet started."""
        return len(self._segments)

    def add_control(self, frame: bytes) -> bool:
        """Queue an encoded frame. False when the peer has not read MAX_CONTROL_BYTES already. Wakes nobody."""
        with self._lock:
            self._control.append(frame)
            self._control_bytes += len(frame)
            return self._control_bytes <= MAX_CONTROL_BYTES

    def add_segment(self, command: SendFile) -> bool:
        """Queue a segment and wake the lane that has been idle longest. False when too many wait."""
        with self._lock:
            if len(self._segments) >= MAX_QUEUED_SEGMENTS:
                return False
            self._segments.append(command)
            self._wake_one()
            return True

    def requeue(self, command: SendFile) -> None:
        """A segment whose lane died before its last byte had left is the next to be sent."""
        with self._lock:
            self._segments.appendleft(command)
            self._wake_one()

    def cancel(self, artifact: ArtifactId, indices: Collection[int]) -> None:
        """Forget queued segments that have not started."""
        with self._lock:
            kept = (s for s in self._segments if s.artifact != artifact or s.index not in indices)
            self._segments = deque(kept)

    def take_control(self) -> memoryview | None:
        """Encoded frames to be sent now, or None."""
        with self._lock:
            joined = bytearray()
            while self._control and (not joined or len(joined) + len(self._control[0]) <= JOINED_BYTES):
                joined += self._control.popleft()
            self._control_bytes -= len(joined)
        return memoryview(joined) if joined else None

    def offered(self, lane: Idle) -> int:
        """The size of the next segment; 0 when there is none: the lane is idle then, and woken for the next one."""
        with self._lock:
            self._idle.pop(lane, None)
            if self._segments:
                return self._segments[0].length + len(self._segments[0].frame)
            self._idle[lane] = None
            return 0

    def leave(self, lane: Idle) -> None:
        """The lane carries no segments any more."""
        with self._lock:
            self._idle.pop(lane, None)
            if self._segments:
                self._wake_one()

    def take_segment(self, buffer: bytearray) -> Outgoing | None:
        """The next segment, ready to be sent out of the lane's `buffer`, which is enlarged where that is too small.

        One that cannot be read or has rotted is reported and passed over.
        """
        while True:
            with self._lock:
                if not self._segments:
                    return None
                command = self._segments.popleft()
            ready = read_frame(command, buffer)
            if not isinstance(ready, str):
                return Outgoing(ready, command)
            self._failed(SegmentFailed(command.peer, command.artifact, command.index, ready))

    def _wake_one(self) -> None:
        lane = next(iter(self._idle), None)
        if lane is not None:
            del self._idle[lane]
            lane.wake()


def read_frame(command: SendFile, buffer: bytearray) -> memoryview | str:
    """The encoded frame with the segment's bytes behind it, in `buffer`, or why they must not be sent."""
    head = encode_head(command.frame, command.length)
    size = len(head) + command.length
    if len(buffer) < size:
        buffer.extend(bytes(size - len(buffer)))
    frame = memoryview(buffer)[:size]
    frame[: len(head)] = head
    payload = frame[len(head) :]
    try:
        descriptor = os.open(command.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            count = os.preadv(descriptor, [payload], command.offset)
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"cannot read the segment: {error.strerror}"
    if count != command.length or blake3(payload).digest() != command.digest:
        return "the segment's bytes on disk no longer match its hash"
    return frame
