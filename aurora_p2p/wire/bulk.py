"""What a daemon and its bulk child say to each other over their socket pair (frames of wire/frame.py).

The child owns sockets, TLS, token buckets and segment files in its spool; the daemon owns machines and the store.
No segment byte crosses this pipe: incoming segments are named by spool file, outgoing ones by file range.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from aurora_p2p.types import Record
from aurora_p2p.wire.exchange import Index
from aurora_p2p.wire.limits import MAX_MEMBERS, U62, Address, ArtifactField, Bytes32, Name, PeerField, SwarmField, Text

MAX_LANES = 8
"""Connections of one link. Over a lossy path 1 / 4 / 8 took 5.9 / 1.6 / 1.075 times the bound (simulated, swarm.md)."""
MAX_FRAME = 2 * 2**20
"""Bytes of an encoded frame without its payload: an Offer whose header names 20,000 tensors fits."""
FrameBytes = Annotated[bytes, Meta(max_length=MAX_FRAME)]
"""An encoded ExchangeFrame."""
Lanes = Annotated[int, Meta(ge=1, le=MAX_LANES)]


class BulkStart(Record, frozen=True, tag="start"):
    """First command. Rates are bytes/s of segment payload and frames, 0 = no cap; port 0 = any free one."""

    seed: Bytes32
    swarm: SwarmField
    listen_host: Address
    listen_port: Annotated[int, Meta(ge=0, le=65535)]
    up_rate: U62
    down_rate: U62
    spool: Address


class SetMembers(Record, frozen=True, tag="members"):
    """Who may connect; links to anyone else are closed."""

    peers: Annotated[tuple[PeerField, ...], Meta(max_length=MAX_MEMBERS)]


class SetRates(Record, frozen=True, tag="rates"):
    up_rate: U62
    down_rate: U62


class DialPeer(Record, frozen=True, tag="dial"):
    peer: PeerField
    address: Address
    """"host:port", or "[ipv6]:port"."""
    lanes: Lanes = 1
    """TLS connections that the link shall have: the first now, the others once it is open."""


class SetLanes(Record, frozen=True, tag="lanes"):
    """The link that was dialled to this peer shall have so many connections from now on."""

    peer: PeerField
    lanes: Lanes


class CloseLink(Record, frozen=True, tag="close"):
    peer: PeerField
    reason: Text


class SendFrame(Record, frozen=True, tag="send-frame"):
    """Send an encoded frame without payload, ahead of queued segments."""

    peer: PeerField
    frame: FrameBytes


class SendFile(Record, frozen=True, tag="send-file"):
    """Send a SegmentData frame whose payload is `length` bytes of `path` at `offset`, if they hash to `digest`."""

    peer: PeerField
    frame: FrameBytes
    artifact: ArtifactField
    index: Index
    path: Address
    offset: U62
    length: U62
    digest: Bytes32


class CancelSend(Record, frozen=True, tag="cancel-send"):
    """Forget queued segments that have not started."""

    peer: PeerField
    artifact: ArtifactField
    segments: Annotated[tuple[Index, ...], Meta(max_length=4096)]


class FreeSpool(Record, frozen=True, tag="free-spool"):
    """These spool files are needed no more."""

    paths: Annotated[tuple[Address, ...], Meta(max_length=4096)]


class StopBulk(Record, frozen=True, tag="stop"):
    pass


class Listening(Record, frozen=True, tag="listening"):
    port: int


class StartFailed(Record, frozen=True, tag="start-failed"):
    in_use: bool
    detail: Text


class LinkOpened(Record, frozen=True, tag="link-opened"):
    peer: PeerField
    address: Address
    dialled: bool


class LinkClosed(Record, frozen=True, tag="link-closed"):
    peer: PeerField
    reason: Text


class DialFailed(Record, frozen=True, tag="dial-failed"):
    peer: PeerField
    address: Address
    reason: Text


class FrameArrived(Record, frozen=True, tag="frame"):
    peer: PeerField
    frame: FrameBytes


class SegmentArrived(Record, frozen=True, tag="segment"):
    """`frame` is the SegmentData frame; its payload lies in `path` until FreeSpool; `digest`: the payload's BLAKE3."""

    peer: PeerField
    frame: FrameBytes
    path: Address
    length: U62
    digest: Bytes32


class SegmentSent(Record, frozen=True, tag="sent"):
    """The last byte of a segment has left for the kernel. queue: segments still waiting for this peer."""

    peer: PeerField
    artifact: ArtifactField
    index: Index
    length: U62
    queue: U62


class SegmentFailed(Record, frozen=True, tag="failed"):
    """A segment was not sent: its file no longer hashes to `digest` (bad disk or RAM), or is gone."""

    peer: PeerField
    artifact: ArtifactField
    index: Index
    detail: Text


class SpoolFull(Record, frozen=True, tag="spool-full"):
    """The disk refused an incoming segment; it was read and thrown away."""

    peer: PeerField
    frame: FrameBytes


class BulkStats(Record, frozen=True, tag="stats"):
    """At most once a second. Since start: payload bytes (peer, sent, received); handshakes refused (why, n).

    links: of the open ones (peer, shortest round trip in microseconds or 0, connections).
    """

    peers: Annotated[tuple[tuple[PeerField, U62, U62], ...], Meta(max_length=MAX_MEMBERS)]
    refused: Annotated[tuple[tuple[Name, U62], ...], Meta(max_length=64)] = ()
    links: Annotated[tuple[tuple[PeerField, U62, U62], ...], Meta(max_length=MAX_MEMBERS)] = ()


BulkCommand = (
    BulkStart
    | SetMembers
    | SetRates
    | DialPeer
    | SetLanes
    | CloseLink
    | SendFrame
    | SendFile
    | CancelSend
    | FreeSpool
    | StopBulk
)
BulkEvent = (
    Listening
    | StartFailed
    | LinkOpened
    | LinkClosed
    | DialFailed
    | FrameArrived
    | SegmentArrived
    | SegmentSent
    | SegmentFailed
    | SpoolFull
    | BulkStats
)
