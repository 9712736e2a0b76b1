r"""The reading half of a lane: bytes in, events out; payloads go to spool files, hashed while they are read.

    PREFIX --> HEADER --> (FrameArrived) PREFIX
                     \--> PAYLOAD --> (SegmentArrived | SpoolFull) PREFIX

A prefix of 8 zero bytes is a keep-alive. A header is decoded here, so that garbage costs its sender the link before
anything reaches the daemon: only SegmentData has a payload, and always one; only a first lane carries other frames.
When the disk refuses, the payload is read to its end and thrown away: the link survives a full disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from aurora_p2p.errors import WireError
from aurora_p2p.local.faults import reach
from aurora_p2p.net.spool import Incoming, Spool
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


class Inbound:
    """State of one lane's reading side. `deadline`: when the frame that has started must be complete, or infinity."""

    def __init__(
        self, peer: PeerId, spool: Spool, emit: Emit, allowance: Allowance, *, segments_only: bool = False
    ) -> None:
        self._peer, self._spool, self._emit, self._allowance = peer, spool, emit, allowance
        self._segments_only = segments_only
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

    @property
    def missing(self) -> int:
        """Bytes until the end of the payload that is arriving; 0 between payloads."""
        return self._missing if self._incoming is not None else 0

    def postpone(self, seconds: float) -> None:
        """We did not read for so long: not the peer's fault."""
        self._started_at += seconds
        self.deadline += seconds

    def discard(self) -> None:
        """The lane is gone: forget the unfinished payload."""
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
            self._incoming = Incoming(self._spool, self._payload_length)
        elif self._segments_only:
            raise WireError(f"a {type(frame).__name__} frame is not on the link's first connection")
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
