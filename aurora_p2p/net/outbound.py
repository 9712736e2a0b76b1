"""The writing half of a link: what waits to be sent, and the frame that is being sent.

Control frames go ahead of segments that have not started. A segment is read from its file and hashed just before it
starts, so that bad RAM or a rotten disk never gets an honest node banned. Filled by the command thread, emptied by
the link's owner.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from blake3 import blake3

from aurora_p2p.types import ArtifactId
from aurora_p2p.wire.bulk import SegmentFailed, SendFile
from aurora_p2p.wire.frame import encode_frame

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


class Outbound:
    """Two bounded queues of one link."""

    def __init__(self, failed: Callable[[SegmentFailed], None]) -> None:
        self._lock = threading.Lock()
        self._control: deque[bytes] = deque()
        self._control_bytes = 0
        self._segments: deque[SendFile] = deque()
        self._staged: Outgoing | None = None
        self._failed = failed

    @property
    def waiting(self) -> int:
        """Segments not yet started."""
        return len(self._segments)

    def add_control(self, frame: bytes) -> bool:
        """Queue an encoded frame. False when the peer has not read MAX_CONTROL_BYTES already."""
        with self._lock:
            self._control.append(frame)
            self._control_bytes += len(frame)
            return self._control_bytes <= MAX_CONTROL_BYTES

    def add_segment(self, command: SendFile) -> bool:
        with self._lock:
            if len(self._segments) >= MAX_QUEUED_SEGMENTS:
                return False
            self._segments.append(command)
            return True

    def cancel(self, artifact: ArtifactId, indices: Collection[int]) -> None:
        """Forget queued segments that have not started."""
        with self._lock:
            kept = (s for s in self._segments if s.artifact != artifact or s.index not in indices)
            self._segments = deque(kept)

    def next(self) -> Outgoing | None:
        """What should be sent now; a segment is still cancellable until `start`."""
        with self._lock:
            joined = self._take_control()
        if joined:
            return Outgoing(memoryview(joined))
        while (command := self._head()) is not None:
            if self._staged is None or self._staged.segment is not command:
                self._staged = self._stage(command)
            if self._staged is not None:
                return self._staged
            self.start(command)
        self._staged = None
        return None

    def start(self, command: SendFile) -> bool:
        """Take a segment off the queue; False when it was cancelled meanwhile."""
        with self._lock:
            if not self._segments or self._segments[0] is not command:
                return False
            self._segments.popleft()
            self._staged = None
            return True

    def _head(self) -> SendFile | None:
        with self._lock:
            return self._segments[0] if self._segments else None

    def _take_control(self) -> bytes:
        joined = bytearray()
        while self._control and (not joined or len(joined) + len(self._control[0]) <= JOINED_BYTES):
            joined += self._control.popleft()
        self._control_bytes -= len(joined)
        return bytes(joined)

    def _stage(self, command: SendFile) -> Outgoing | None:
        payload = read_range(command)
        if isinstance(payload, str):
            self._failed(SegmentFailed(command.peer, command.artifact, command.index, payload))
            return None
        return Outgoing(memoryview(encode_frame(command.frame, payload)), command)


def read_range(command: SendFile) -> bytes | str:
    """The segment's bytes, or why they must not be sent."""
    try:
        descriptor = os.open(command.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            payload = os.pread(descriptor, command.length, command.offset)
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"cannot read the segment: {error.strerror}"
    if len(payload) != command.length or blake3(payload).digest() != command.digest:
        return "the segment's bytes on disk no longer match its hash"
    return payload
