"""Everything that goes into the exchange machine and everything that comes out of it.

The driver (net/drive.py) and the simulator (testing/network.py) turn sockets, files and clocks into events, and effects
back into sockets and files. No segment byte is in here: a received segment is a spool `token` with a length and a
BLAKE3 digest, a segment to send is an index of an artifact in the store. A peer's fault is the effect `Refused`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.swarm.refusals import Refusal
from aurora_p2p.swarm.roster import RosterView
from aurora_p2p.types import ArtifactId, PeerId
from aurora_p2p.wire.exchange import ExchangeFrame, SegmentData
from aurora_p2p.wire.signed import Signed
from aurora_p2p.wire.trust import Equivocation

# -- events: what happened on the links


@dataclass(frozen=True, slots=True)
class LinkUp:
    """An authenticated connection to a peer is open."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class LinkDown:
    """It is gone, with everything that was queued on it. Always follows a LinkUp."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class FrameIn:
    """A decoded frame without payload (anything but SegmentData)."""

    peer: PeerId
    frame: ExchangeFrame


@dataclass(frozen=True, slots=True)
class SegmentIn:
    """A segment lies in the spool under `token`; `digest` is the BLAKE3 of its `length` bytes.

    Answered at once by exactly one Keep or Discard of that token.
    """

    peer: PeerId
    frame: SegmentData
    token: str
    length: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class SegmentLost:
    """A segment arrived but the spool could not take it (disk full); nothing is held against the sender."""

    peer: PeerId
    frame: SegmentData


@dataclass(frozen=True, slots=True)
class SegmentOut:
    """The last byte of a SendSegment left for the kernel.

    Every SendSegment ends in this, SendFailed or LinkDown, unless CancelSend named it.
    """

    peer: PeerId
    artifact: ArtifactId
    index: int
    length: int
    queue: int = 0


@dataclass(frozen=True, slots=True)
class SendFailed:
    """A SendSegment was not sent: the bytes on our disk are gone or no longer match. The segment counts as missing."""

    peer: PeerId
    artifact: ArtifactId
    index: int


# -- events: what our own process says


@dataclass(frozen=True, slots=True)
class TrustChanged:
    """Who may publish, and who the hosts are. Given before the first LinkUp.

    generation: of the delegation; a higher one ends the standstill after an equivocation.
    """

    publisher: PeerId
    hosts: frozenset[PeerId]
    generation: int = 0


@dataclass(frozen=True, slots=True)
class RosterChanged:
    roster: RosterView


@dataclass(frozen=True, slots=True)
class Publish:
    """We are the origin of this artifact. The manifest object is shared: the caller adds pages before Produced."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Produced:
    """These segments are on our disk and their pages are in the manifest.

    last_bytes: length of the highest index, where it is the artifact's last and shorter than segment_bytes.
    """

    artifact: ArtifactId
    indices: Iterable[int]
    last_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The final page is in the manifest and every segment was Produced."""

    artifact: ArtifactId


@dataclass(frozen=True, slots=True)
class Restored:
    """Found on disk at start: a manifest and the segments that verified. An incomplete one is fetched further.

    origin: we published it (a restarted host).
    """

    manifest: Manifest
    have: Iterable[int]
    origin: bool = False


@dataclass(frozen=True, slots=True)
class Accept:
    """The answer to Announced: disk is reserved, fetch it. May also come long after, or after a Decline."""

    artifact: ArtifactId


@dataclass(frozen=True, slots=True)
class Probe:
    """Another answer to Announced: disk is reserved, but we make the artifact ourselves and tell of it by Stored.

    Only these segments are fetched, for the signed pages that come with them. Accept asks for the rest as well.
    """

    artifact: ArtifactId
    indices: Iterable[int]


@dataclass(frozen=True, slots=True)
class Decline:
    """The answer to Announced: not wanted now."""

    artifact: ArtifactId


@dataclass(frozen=True, slots=True)
class Stored:
    """A Keep is done: the segment can be read from the store."""

    artifact: ArtifactId
    index: int


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """A Keep failed (disk full, read-only), or what we made ourselves is gone: the segment is missing again."""

    artifact: ArtifactId
    index: int


@dataclass(frozen=True, slots=True)
class Retire:
    """The store has dropped, or is about to drop, the artifact: stop serving and forget it."""

    artifact: ArtifactId


@dataclass(frozen=True, slots=True)
class PauseFetch:
    """True: the disk is full, ask for nothing and grant no credit, keep serving. False: go on."""

    paused: bool


@dataclass(frozen=True, slots=True)
class Aborted:
    """A publish-signed Abort that reached us by another way than a link (the host's own, or the control plane)."""

    abort: Signed


Event = (
    LinkUp
    | LinkDown
    | FrameIn
    | SegmentIn
    | SegmentLost
    | SegmentOut
    | SendFailed
    | TrustChanged
    | RosterChanged
    | Publish
    | Produced
    | Finished
    | Restored
    | Accept
    | Probe
    | Decline
    | Stored
    | StoreFailed
    | Retire
    | PauseFetch
    | Aborted
)

# -- effects: on the links


@dataclass(frozen=True, slots=True)
class SendFrame:
    peer: PeerId
    frame: ExchangeFrame


@dataclass(frozen=True, slots=True)
class SendSegment:
    """Send `frame` with segment `index` (`length` bytes) as its payload, if the bytes hash to `expected` (BLAKE3)."""

    peer: PeerId
    frame: SegmentData
    artifact: ArtifactId
    index: int
    expected: bytes
    length: int


@dataclass(frozen=True, slots=True)
class CancelSend:
    """Forget these SendSegments if they have not started. A SegmentOut for one of them is ignored."""

    peer: PeerId
    artifact: ArtifactId
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close the connection; the machine has already forgotten the peer, the LinkDown that follows is ignored."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Banned:
    """Do not dial or accept this peer for `seconds`. A CloseLink comes with it. Local: nobody else is told."""

    peer: PeerId
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """What a peer sent was refused; for the log and the status display."""

    peer: PeerId
    reason: Refusal
    detail: str = ""


# -- effects: on the store


@dataclass(frozen=True, slots=True)
class Keep:
    """Verified: move the spool file into the artifact, save the signed page, answer Stored or StoreFailed.

    page: covers the segment; often one that was saved before.
    """

    artifact: ArtifactId
    index: int
    token: str
    page: Signed


@dataclass(frozen=True, slots=True)
class Discard:
    """Unlink the spool file."""

    token: str


@dataclass(frozen=True, slots=True)
class Completed:
    """Every segment is stored and the final page is in the manifest: the artifact can be staged."""

    artifact: ArtifactId


@dataclass(frozen=True, slots=True)
class AbortSeen:
    """The publisher gave this artifact up; it is forgotten here, drop it from the store."""

    artifact: ArtifactId


@dataclass(frozen=True, slots=True)
class Contradicted:
    """The publisher signed things that cannot all be true; the artifact is forgotten here, drop it from the store."""

    artifact: ArtifactId
    reason: str


# -- effects: for the daemon


@dataclass(frozen=True, slots=True)
class Announced:
    """A header of the publisher, new to us. Nothing is fetched until Accept."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Equivocated:
    """One seq, two artifacts: keep the proof, take no lease, wait for a higher generation. Both are forgotten here."""

    evidence: Equivocation


Effect = (
    SendFrame
    | SendSegment
    | CancelSend
    | CloseLink
    | Banned
    | Refused
    | Keep
    | Discard
    | Completed
    | AbortSeen
    | Contradicted
    | Announced
    | Equivocated
)
