"""Frames of the data plane (TLS bulk connections): docs/protocol/03-exchange.md.

A Segment's bytes are the frame's payload; every other frame has none. `page` is the whole signed page (an encoded
Signed), sent at least once per link before or with the first segment it covers, and empty after that.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from aurora_p2p.types import Record
from aurora_p2p.wire.limits import MAX_SEGMENTS, U32, ArtifactField, EpochField
from aurora_p2p.wire.signed import Signed

Index = Annotated[int, Meta(ge=0, lt=MAX_SEGMENTS)]
Bitmap = Annotated[bytes, Meta(max_length=MAX_SEGMENTS // 8)]
"""Bit i of byte i // 8 (least significant first) is segment i."""


class Hello(Record, frozen=True, tag="hello"):
    wire_min: Annotated[int, Meta(ge=0, le=65535)]
    wire_max: Annotated[int, Meta(ge=0, le=65535)]
    roster_epoch: EpochField
    up_kbps: Annotated[int, Meta(ge=0, le=10**9)]


class Offer(Record, frozen=True, tag="offer"):
    """An artifact exists: its signed header; its signed final page once there is one. Sent again when it completes."""

    header: Signed
    final: Signed | None


class Bitfield(Record, frozen=True, tag="bitfield"):
    """All segments the sender can serve of one artifact."""

    artifact: ArtifactField
    bitmap: Bitmap


class Have(Record, frozen=True, tag="have"):
    """Newly servable segments, batched over 10 ms; `queue` is the number of segments waiting in the sender's uplink."""

    artifact: ArtifactField
    segments: Annotated[tuple[Index, ...], Meta(min_length=1, max_length=4096)]
    queue: U32


class RequestSegments(Record, frozen=True, tag="request"):
    artifact: ArtifactField
    request: U32
    segments: Annotated[tuple[Index, ...], Meta(min_length=1, max_length=64)]


class Cancel(Record, frozen=True, tag="cancel"):
    artifact: ArtifactField
    segments: Annotated[tuple[Index, ...], Meta(min_length=1, max_length=64)]


class Reject(Record, frozen=True, tag="reject"):
    artifact: ArtifactField
    segments: Annotated[tuple[Index, ...], Meta(min_length=1, max_length=64)]
    reason: Literal["busy", "gone", "quota"]


class SegmentData(Record, frozen=True, tag="segment"):
    """The answer to a request, or a push ("first": straight from the origin). The payload is the segment."""

    artifact: ArtifactField
    index: Index
    push: Literal["", "first", "gateway"]
    page: Annotated[bytes, Meta(max_length=16384)]


class Credit(Record, frozen=True, tag="credit"):
    """How many more pushed segments of this artifact the sender of this frame will take."""

    artifact: ArtifactField
    segments: Annotated[int, Meta(ge=0, le=64)]


class Drop(Record, frozen=True, tag="drop"):
    """The artifact was aborted: a publish-signed Abort."""

    abort: Signed


class Evidence(Record, frozen=True, tag="evidence"):
    """Two publish-signed headers with one seq (equivocation)."""

    first: Signed
    second: Signed


ExchangeFrame = (
    Hello | Offer | Bitfield | Have | RequestSegments | Cancel | Reject | SegmentData | Credit | Drop | Evidence
)
