"""Requests and replies of the control plane (libp2p streams): joining, freshness, roster, leases, results."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta

from aurora_p2p.types import Record
from aurora_p2p.wire.limits import (
    MAX_DISTANCES,
    MAX_LEASE_SAMPLES,
    MAX_NEW_TOKENS,
    MAX_PROMPT_TOKENS,
    MAX_RTT_MS,
    MAX_SEGMENTS,
    U62,
    U63,
    BaseVersionField,
    DigestField,
    EpochField,
    LeaseField,
    ManifestField,
    PeerField,
    Rate,
    RunField,
    Seconds,
    StepField,
    SwarmField,
    Text,
    VersionField,
)
from aurora_p2p.wire.signed import Signable, Signed
from aurora_p2p.wire.trust import Charter, Nonce

CONTROL_PROTOCOL = "/aurora/control/1"
"""Joining, freshness, roster: answered at once."""
LEASE_PROTOCOL = "/aurora/lease/1"
"""Lease requests: the host may wait a moment for work, so they have a stream of their own."""
RESULT_PROTOCOL = "/aurora/result/1"
"""Results and releases: answered once they are on disk."""

Token = Annotated[int, Meta(ge=0, le=1 << 20)]
WireVersion = Annotated[int, Meta(ge=0, le=65535)]


class Reason(StrEnum):
    """Every named refusal. The value is what travels and what a person sees."""

    # joining
    WRONG_SWARM = "wrong_swarm"
    WIRE_VERSION = "wire_version"
    NOT_A_HOST = "not_a_host"
    NOT_A_MEMBER = "not_a_member"
    BAD_RECORD = "bad_record"
    ROSTER_FULL = "roster_full"
    NETWORK_FULL = "network_full"
    # leases
    NO_WORK = "no_work"
    VERSION_TOO_OLD = "version_too_old"
    VERSION_UNKNOWN = "version_unknown"
    QUARANTINED = "quarantined"
    DRAINING = "draining"
    PAUSED = "paused"
    DISK_FULL = "disk_full"
    # admission
    LEASE_UNKNOWN = "lease_unknown"
    LEASE_EXPIRED = "lease_expired"
    LEASE_SPENT = "lease_spent"
    FENCED = "fenced"
    NOT_THE_LESSEE = "not_the_lessee"
    WRONG_RUN = "wrong_run"
    LAG = "lag"
    WRONG_MANIFEST = "wrong_manifest"
    WRONG_DIGEST = "wrong_digest"
    NOT_IN_LEASE = "not_in_lease"
    BAD_TOKENS = "bad_tokens"
    BAD_LOGPROBS = "bad_logprobs"
    BAD_FINISH = "bad_finish"
    WRONG_SEED = "wrong_seed"
    DUPLICATE = "duplicate"
    BAD_SIGNATURE = "bad_signature"
    MALFORMED = "malformed"
    TOO_LATE = "too_late"
    # renewing
    NOT_RENEWED = "not_renewed"
    # reports
    TOO_OFTEN = "too_often"


class Refusal(Record, frozen=True, tag="refusal"):
    """The answer to a request that is not granted; `detail` is one line for a person."""

    reason: Reason
    detail: Text = ""
    retry_seconds: Seconds = 0.0


class Join(Record, frozen=True, tag="join"):
    """A node asks to become a member. `record` is its signed PeerRecord."""

    swarm: SwarmField
    record: Signed
    wire_min: WireVersion
    wire_max: WireVersion
    nonce: Nonce


class Welcome(Record, frozen=True, tag="welcome"):
    charter: Charter
    roster: Signed
    head: Signed | None
    """Head over the nonce; None while nothing has been published."""


class Challenge(Record, frozen=True, tag="challenge"):
    nonce: Nonce


class HeadAnswer(Record, frozen=True, tag="head"):
    charter: Charter
    head: Signed | None


class RosterRequest(Record, frozen=True, tag="roster"):
    have: EpochField


class RosterReply(Record, frozen=True, tag="roster-reply"):
    roster: Signed


class LeaseRequest(Signable, frozen=True, tag="lease-request"):
    """What a node holds and how fast it is; signed by the node."""

    domain = "lease-request"
    nonce: Nonce
    run: RunField
    version: VersionField
    manifest_hash: ManifestField
    digest: DigestField
    tokens_per_second: Rate
    """The node's own EMA of generated tokens/s; 0 before the first measurement."""
    max_samples: Annotated[int, Meta(ge=1, le=MAX_LEASE_SAMPLES)]


class SignedLeaseRequest(Record, frozen=True, tag="lease"):
    request: Signed


class Sampling(Record, frozen=True):
    """T > 0, top_p = 1, no top-k, no penalties: nothing else is supported, so nothing else can be said."""

    temperature: Annotated[float, Meta(gt=0, le=100)]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_NEW_TOKENS)]
    vocabulary: Annotated[int, Meta(ge=1, le=1 << 20)]
    stop_tokens: Annotated[tuple[Token, ...], Meta(max_length=16)]


class LeaseSample(Record, frozen=True):
    """One sample to draw: its key within the step, its seed (63 bits) and the prompt's index in the lease."""

    prompt: U62
    sample: U62
    seed: U63
    prompt_index: Annotated[int, Meta(ge=0, lt=MAX_LEASE_SAMPLES)]


PromptTokens = Annotated[tuple[Token, ...], Meta(min_length=1, max_length=MAX_PROMPT_TOKENS)]


class Lease(Signable, frozen=True):
    """Who works on which samples, at which version, for how long. Signed by the lease key."""

    domain = "lease"
    lease: LeaseField
    lessee: PeerField
    run: RunField
    target_step: StepField
    version: VersionField
    manifest_hash: ManifestField
    digest: DigestField
    fencing: U62
    seconds: Seconds
    """A duration: each side counts it on its own CLOCK_BOOTTIME, the node from sending the request."""
    sampling: Sampling
    prompts: Annotated[tuple[PromptTokens, ...], Meta(min_length=1, max_length=MAX_LEASE_SAMPLES)]
    samples: Annotated[tuple[LeaseSample, ...], Meta(min_length=1, max_length=MAX_LEASE_SAMPLES)]


class Grant(Record, frozen=True, tag="grant"):
    lease: Signed
    head: Signed


Finish = Literal["stop", "length"]


class SampleResult(Signable, frozen=True):
    """One finished sample; signed by the node.

    logprobs: log_softmax(logits / T) of each sampled token, end-of-sequence included.
    audited: version at which the node last recomputed its digest in full.
    """

    domain = "result"
    lease: LeaseField
    fencing: U62
    run: RunField
    target_step: StepField
    prompt: U62
    sample: U62
    seed: U63
    version: VersionField
    manifest_hash: ManifestField
    digest: DigestField
    audited: VersionField
    tokens: Annotated[tuple[Token, ...], Meta(max_length=MAX_NEW_TOKENS)]
    logprobs: Annotated[tuple[float, ...], Meta(max_length=MAX_NEW_TOKENS)]
    finish: Finish


class Submit(Record, frozen=True, tag="submit"):
    """Finished samples, each signed on its own; a node sends what it has, it never waits to fill a batch."""

    results: Annotated[tuple[Signed, ...], Meta(min_length=1, max_length=64)]
    tokens_per_second: Rate


class Receipt(Record, frozen=True):
    prompt: U62
    sample: U62
    accepted: bool
    reason: Annotated[str, Meta(max_length=64)] = ""


class Receipts(Record, frozen=True, tag="receipts"):
    """One per result, in order; sent only after the ledger has them on disk."""

    receipts: Annotated[tuple[Receipt, ...], Meta(max_length=64)]


class Release(Record, frozen=True, tag="release"):
    """The node gives back what it has not finished (SIGTERM, drain)."""

    lease: LeaseField
    fencing: U62


class Released(Record, frozen=True, tag="released"):
    samples: U62


class Renew(Record, frozen=True, tag="renew"):
    """The node still works on the lease and will not be done in time."""

    lease: LeaseField
    fencing: U62


class Renewed(Record, frozen=True, tag="renewed"):
    seconds: Seconds
    """A duration: the host counts it from answering, the node from sending the request."""


class CommitFailed(Record, frozen=True, tag="commit-failed"):
    """A node could not commit a version and is re-basing from a snapshot; the host shows it."""

    version: VersionField
    detail: Text


Segments = Annotated[int, Meta(ge=0, le=MAX_SEGMENTS)]


class Progress(Record, frozen=True, tag="progress"):
    """What a node does about newer weights; sent when it changes, at most once a second. For people: nothing is decided
    by it. A version of -1 means none; total is 0 while the artifact's length is not known."""

    fetching: BaseVersionField
    have: Segments
    total: Segments
    staged: BaseVersionField
    """The newest version decoded beside the live weights, or held."""
    committed: BaseVersionField
    """The version it serves."""
    state: Text
    """One line for a person."""


class Distance(Record, frozen=True):
    """The shortest round trip of the last minutes on an open link, as the kernel measured it."""

    peer: PeerField
    rtt_ms: Annotated[int, Meta(ge=0, le=MAX_RTT_MS)]


class Distances(Record, frozen=True, tag="distances"):
    """How far the members are that a node has links with, the nearest first; the host makes regions of it."""

    peers: Annotated[tuple[Distance, ...], Meta(max_length=MAX_DISTANCES)]


class Noted(Record, frozen=True, tag="noted"):
    pass


Request = (
    Join
    | Challenge
    | RosterRequest
    | SignedLeaseRequest
    | Submit
    | Release
    | Renew
    | CommitFailed
    | Progress
    | Distances
)
Reply = Welcome | HeadAnswer | RosterReply | Grant | Receipts | Released | Renewed | Noted | Refusal
