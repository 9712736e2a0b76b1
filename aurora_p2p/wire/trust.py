"""Who may say what: delegation, succession, peer records, roster, HEAD, Abort (docs/protocol/01-trust.md)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from aurora_p2p.types import Record
from aurora_p2p.wire.limits import (
    MAX_MEMBERS,
    U62,
    Address,
    Addresses,
    ArtifactField,
    Bytes32,
    EpochField,
    GenerationField,
    ManifestField,
    PeerField,
    SeqField,
    SwarmField,
    VersionField,
)
from aurora_p2p.wire.signed import Signable, Signed

MAX_REGIONS = 8


class Succession(Signable, frozen=True):
    """Root key number `index` names its successor; signed by the old root."""

    domain = "succession"
    swarm: SwarmField
    index: Annotated[int, Meta(ge=1, le=64)]
    successor: PeerField


class Delegation(Signable, frozen=True):
    """The root lends its voice: generation g -> the publish, admit and lease keys and the host's peer ids."""

    domain = "delegation"
    swarm: SwarmField
    generation: GenerationField
    publish: PeerField
    admit: PeerField
    lease: PeerField
    hosts: Annotated[tuple[PeerField, ...], Meta(min_length=1, max_length=8)]


class Charter(Record, frozen=True):
    """A delegation with the chain of root successions that makes its signer a root of the swarm."""

    delegation: Signed
    successions: Annotated[tuple[Signed, ...], Meta(max_length=64)] = ()


class PeerRecord(Signable, frozen=True):
    """A node's own addresses, signed by itself. A higher `seq` replaces a lower one.

    control: libp2p multiaddrs without /p2p; bulk: "host:port" of the TLS data plane ("[::1]:port" for IPv6).
    """

    domain = "peer-record"
    swarm: SwarmField
    peer: PeerField
    seq: U62
    control: Addresses
    bulk: Annotated[tuple[Address, ...], Meta(max_length=16)]
    up_kbps: Annotated[int, Meta(ge=0, le=10**9)]
    """Upload the owner offers, kbit/s (1,000 bits); a claim only."""


class Member(Record, frozen=True):
    record: Signed
    region: Annotated[int, Meta(ge=0, lt=MAX_REGIONS)]
    probation: bool


class Roster(Signable, frozen=True):
    """Who is in the swarm; signed by the admit key. Changes only between artifacts."""

    domain = "roster"
    swarm: SwarmField
    generation: GenerationField
    epoch: EpochField
    members: Annotated[tuple[Member, ...], Meta(max_length=MAX_MEMBERS)]


class Head(Signable, frozen=True):
    """The newest complete publication; signed by the publish key over the asker's nonce (empty: a hint only)."""

    domain = "head"
    swarm: SwarmField
    nonce: Annotated[bytes, Meta(max_length=32)]
    generation: GenerationField
    roster_epoch: EpochField
    seq: SeqField
    version: VersionField
    artifact: ArtifactField
    manifest_hash: ManifestField
    min_wire: Annotated[int, Meta(ge=0, le=65535)]


class Abort(Signable, frozen=True):
    """Publication `seq` died half-way and will never be completed; signed by the publish key."""

    domain = "abort"
    swarm: SwarmField
    seq: SeqField
    artifact: ArtifactField


class Floor(Record, frozen=True):
    """The oldest (generation, seq) a holder of this value still accepts."""

    generation: GenerationField
    seq: SeqField


class Equivocation(Record, frozen=True):
    """Proof that one seq was used for two artifacts: two publish-signed values that name it."""

    first: Signed
    second: Signed


Nonce = Bytes32
