"""What a daemon and its fold child say to each other over their socket pair: stored artifacts in, one body out.

    daemon                child
    Fold              ->  FoldBegun, FoldBody*..., FoldEnded | FoldFailed at any time

One Fold per child. FoldBody's payload is the next piece of the block stream.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from aurora_p2p.types import Record
from aurora_p2p.wire.limits import U62, Address, Bytes32, DigestField, Name, Text
from aurora_p2p.wire.manifest import Header

MAX_SOURCES = 1024
"""Twice what a node may know of: no chain is longer."""


class Source(Record, frozen=True):
    """A stored artifact: its header, the file of its body, and the state digest that its final page names."""

    header: Header
    body: Address
    digest: DigestField


class Fold(Record, frozen=True, tag="fold"):
    """Make one artifact of a chain. sources: a snapshot and the deltas after it, each on the one before.

    base: how many of them make the state that the result starts from; 0 asks for a snapshot of the last state.
    """

    sources: Annotated[tuple[Source, ...], Meta(min_length=1, max_length=MAX_SOURCES)]
    base: Annotated[int, Meta(ge=0, le=MAX_SOURCES)]
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1


class FoldBegun(Record, frozen=True, tag="begun"):
    """What the result's header needs. size_bound: no body of this fold is longer."""

    layout: Bytes32
    class_map: Annotated[bytes, Meta(max_length=7)]
    size_bound: U62


class FoldBody(Record, frozen=True, tag="body"):
    """The frame's payload is the next piece of the body."""


class FoldEnded(Record, frozen=True, tag="ended"):
    """The body is whole, and the states on the way had the digests that were signed."""

    digest: DigestField
    changed: U62
    elements: U62


class FoldFailed(Record, frozen=True, tag="failed"):
    """kind: the error's class name in errors.py."""

    kind: Name
    detail: Text


FoldReply = FoldBegun | FoldBody | FoldEnded | FoldFailed
