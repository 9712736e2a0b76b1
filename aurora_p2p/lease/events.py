"""What goes into the work pool, what comes out of it, and what the ledger keeps of it.

Events   From(peer, message), SubmitPrompts, TakeRollouts (wire values as they arrived), VersionPublished, Forget
Effects  Persist(record), Reply(message), Ended, Completed
Records  what a restarted host replays, in this order: VersionPublished, SubmitPrompts, LeaseGranted, SampleAdmitted,
         ResultRefused

A driver needs one rule: `await ledger.commit(...)` every Persist of a call before it sends the call's Reply, also when
there is none to commit (an earlier call's records may still be on their way to the disk).
"""

from __future__ import annotations

from dataclasses import dataclass

from aurora_p2p.types import LeaseId, ManifestHash, PeerId, Record, StateDigest, Step, Version
from aurora_p2p.wire.control import (
    Lease,
    LeaseRequest,
    LeaseSample,
    Noted,
    Reason,
    Receipts,
    Refusal,
    Release,
    Released,
    Renew,
    Renewed,
    SampleResult,
    Submit,
)
from aurora_p2p.wire.signed import Signed
from aurora_p2p.wire.trainer import Failed, Rollouts, SubmitPrompts, TakeRollouts, Waiting

Slot = tuple[int, int]
"""(prompt, sample): a sample within its step."""


class VersionPublished(Record, frozen=True):
    """A publication is complete: nodes that hold it may work. One version may have several manifests (delta, snapshot)
    of one digest."""

    version: Version
    manifest_hash: ManifestHash
    digest: StateDigest


class LeaseGranted(Record, frozen=True):
    """wire.Lease without the prompts and the sampling, which the step has. seconds: its whole duration."""

    lease: LeaseId
    lessee: PeerId
    step: Step
    version: Version
    manifest_hash: ManifestHash
    digest: StateDigest
    fencing: int
    seconds: float
    samples: tuple[LeaseSample, ...]


class LeaseClosed(Record, frozen=True):
    """Samples not admitted went back to the pool. reason: what a later result is told."""

    lease: LeaseId
    reason: Reason


class SampleAdmitted(Record, frozen=True):
    """The signed result as it came (proof of who said what), and its decoded body."""

    signed: Signed
    result: SampleResult


class ResultRefused(Record, frozen=True):
    reason: Reason
    count: int = 1


class StepForgotten(Record, frozen=True):
    """The step is consumed and no duplicate of its results is worth an acknowledgement any more."""

    step: Step


PoolRecord = (
    VersionPublished | SubmitPrompts | LeaseGranted | LeaseClosed | SampleAdmitted | ResultRefused | StepForgotten
)


@dataclass(frozen=True, slots=True)
class From:
    """A message from an authenticated member; a LeaseRequest's signature was checked at the door."""

    peer: PeerId
    message: LeaseRequest | Submit | Release | Renew


@dataclass(frozen=True, slots=True)
class Forget:
    """The peer left or was removed: what it holds goes back at once. Its measured rate is kept."""

    peer: PeerId


Event = From | Forget | SubmitPrompts | TakeRollouts | VersionPublished


@dataclass(frozen=True, slots=True)
class Persist:
    record: PoolRecord


@dataclass(frozen=True, slots=True)
class Reply:
    """The one answer to From, SubmitPrompts and TakeRollouts; a Lease is for the driver to sign."""

    message: Lease | Refusal | Receipts | Released | Renewed | Noted | Failed | Rollouts | Waiting


@dataclass(frozen=True, slots=True)
class Ended:
    """A lease ended before its last sample came: the deadline, the step or the peer is gone."""

    lease: LeaseId
    peer: PeerId
    reason: Reason
    samples: int
    """How many returned to the pool."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The step's last sample is admitted: TakeRollouts answers with Rollouts."""

    step: Step


Effect = Persist | Reply | Ended | Completed


def records_of(effects: list[Effect]) -> list[PoolRecord]:
    """What to commit before the reply leaves."""
    return [effect.record for effect in effects if isinstance(effect, Persist)]


def reply_of(effects: list[Effect]) -> Reply | None:
    return next((effect for effect in effects if isinstance(effect, Reply)), None)
