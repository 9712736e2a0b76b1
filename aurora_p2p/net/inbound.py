r"""The reading half of a link: bytes in, events out; payloads go to spool files, hashed while they are read.

    PREFIX --> HEADER --> (FrameArrived) PREFIX
                     \--> PAYLOAD --> (SegmentArrived | SpoolFull) PREFIX

A prefix of 8 zero bytes is a keep-alive. A header is decoded here, so that garbage costs its sender the link before
anything reaches the daemon: only SegmentData has a payload, and always one. Spool names are made here, never received.
When the disk refuses, the payload is read to its end and thrown away: the link survives a full disk.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from blake3 import blake3

from aurora_p2p.errors import WireError
from aurora_p2p.local import faults
from aurora_p2p.local.faults import reach
from aurora_p2p.types import PeerId, Record
from aurora_p2p.wire.bulk import MAX_FRAME, FrameArrived, SegmentArrived, SpoolFull
from aurora_p2p.wire.codec import decode
from aurora_p2p.wire.exchange import ExchangeFrame, SegmentData
from aurora_p2p.wire.frame import PREFIX, frame_lengths
from aurora_p2p.wire.limits import MAX_SEGMENT

KEEP_ALIVE = bytes(PREFIX)

Emit = Callable[[FrameArrived | SegmentArrived | SpoolFull], None]
Allowance = Callable[[int], float]
"""Seconds that a frame of so many bytes may take."""


class Spool:
    """A folder of payload files, emptied when it is opened. Raises OSError when it cannot be used.

    Names are never used again, not even by the next process: a late reader finds its file or none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._prefix, self._numbers = os.urandom(4).hex(), itertools.count()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left_over in folder.glob("*.payload"):
            left_over.unlink()

    def next_path(self) -> Path:
        return self._folder / f"{self._prefix}-{next(self._numbers)}.payload"


class Incoming:
    """One payload on its way to the spool. `stored` turns False when the disk refuses it."""

    def __init__(self, path: Path, length: int) -> None:
        self.path, self.length, self.stored = path, length, True
        self._hash = blake3()
        self._descriptor = -1
        with self._or_give_up():
            faults.disk("create", path)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, piece: memoryview) -> None:
        self._hash.update(piece)
        with self._or_give_up():
            faults.disk("write", self.path, piece, lambda part: os.write(self._descriptor, part))
            while piece and self.stored:
                piece = piece[os.write(self._descriptor, piece) :]
        reach("bulk.receiving")

    def finish(self) -> bytes:
        """Close the file; BLAKE3 of the payload."""
        self._close()
        return self._hash.digest()

    def discard(self) -> None:
        self.stored = False
        self._close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _or_give_up(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.discard()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)


class Inbound:
    """State of one link's reading side. `deadline`: when the frame that has started must be complete, or infinity."""

    def __init__(self, peer: PeerId, spool: Spool, emit: Emit, allowance: Allowance) -> None:
        self._peer, self._spool, self._emit, self._allowance = peer, spool, emit, allowance
        self._started_at = 0.0
        self.deadline = math.inf
        self._buffer, self._header = bytearray(), b""
        self._missing, self._header_length, self._payload_length = PREFIX, 0, 0
        self._incoming: Incoming | None = None

    def feed(self, piece: memoryview, now: float) -> None:
        """Take bytes from the peer. Raises WireError when they break the protocol."""
        while piece:
            if self.deadline == math.inf:
                self._started_at = now
                self.deadline = now + self._allowance(0)
            part, piece = piece[: self._missing], piece[self._missing :]
            self._missing -= len(part)
            if self._incoming is None:
                self._buffer += part
            else:
                self._incoming.write(part)
            if not self._missing:
                self._advance()

    def postpone(self, seconds: float) -> None:
        """We did not read for so long: not the peer's fault."""
        self._started_at += seconds
        self.deadline += seconds

    def discard(self) -> None:
        """The link is gone: forget the unfinished payload."""
        if self._incoming is not None:
            self._incoming.discard()

    def _advance(self) -> None:
        if self._incoming is not None:
            self._finish(self._incoming)
        elif self._header_length:
            self._take_header(bytes(self._buffer))
        elif self._buffer == KEEP_ALIVE:
            self._reset()
        else:
            header, payload = frame_lengths(bytes(self._buffer), max_header=MAX_FRAME, max_payload=MAX_SEGMENT)
            self._header_length = self._missing = header
            self._payload_length = payload
            self._buffer.clear()
            self.deadline = self._started_at + self._allowance(header + payload)

    def _take_header(self, header: bytes) -> None:
        frame: Record = decode(header, ExchangeFrame)  # type: ignore[arg-type]
        if isinstance(frame, SegmentData) != bool(self._payload_length):
            raise WireError(f"a {type(frame).__name__} frame has a payload of {self._payload_length} bytes")
        if self._payload_length:
            self._header = header
            self._missing = self._payload_length
            self._incoming = Incoming(self._spool.next_path(), self._payload_length)
        else:
            self._emit(FrameArrived(self._peer, header))
            self._reset()

    def _finish(self, incoming: Incoming) -> None:
        digest = incoming.finish()
        reach("bulk.received")
        if incoming.stored:
            self._emit(SegmentArrived(self._peer, self._header, str(incoming.path), incoming.length, digest))
        else:
            self._emit(SpoolFull(self._peer, self._header))
        self._reset()

    def _reset(self) -> None:
        self.deadline = math.inf
        self._buffer, self._header = bytearray(), b""
        self._missing, self._header_length, self._payload_length = PREFIX, 0, 0
        self._incoming = None
