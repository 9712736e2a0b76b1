"""The rule: which result is accepted, and the named reason when it is not.

One pure function, `judge`. Look-ups that cost nothing come first, the signature last, and state changes (in the pool)
only after it. A self-reported digest or log-probability catches faults, not liars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from aurora_p2p.crypto.sign import is_signed_by
from aurora_p2p.lease.events import LeaseGranted, Slot
from aurora_p2p.types import LeaseId, PeerId, RunId, StateDigest
from aurora_p2p.wire.codec import hash_of
from aurora_p2p.wire.control import Reason, SampleResult, Sampling
from aurora_p2p.wire.signed import Signed


class Accepted(Enum):
    NEW = "new"
    AGAIN = "again"
    """The same body under the same lease was admitted before: its acknowledgement was lost. Not counted twice."""


@dataclass(frozen=True, slots=True)
class Prior:
    """An earlier admission of the sample: under which lease, whose, and BLAKE3 of its body."""

    lease: LeaseId
    node: PeerId
    body_hash: bytes


@dataclass(frozen=True, slots=True)
class Standing:
    """What the host knows about the lease that a result names."""

    lease: LeaseGranted | Reason
    """The live lease, or why there is none: LEASE_UNKNOWN, LEASE_EXPIRED, LEASE_SPENT, TOO_LATE."""
    seeds: Mapping[Slot, int]
    """Samples of the lease that are not admitted yet, and the seed of each."""
    sampling: Sampling | None
    """None only without a live lease."""
    digest: StateDigest | None
    """State digest published for the lease's version; None when the version is forgotten."""
    prior: Prior | None


def judge(signed: Signed, result: SampleResult, standing: Standing, *, run: RunId, max_lag: int) -> Accepted | Reason:
    """Whether `result`, the decoded body of `signed`, is admitted. Never raises."""
    prior, lease = standing.prior, standing.lease
    if prior is not None and prior.lease == result.lease:
        if signed.signer != prior.node:  # a copy: an acknowledgement would be credit for another's work
            return Reason.NOT_THE_LESSEE
        return Accepted.AGAIN if prior.body_hash == hash_of(signed.body) else Reason.DUPLICATE
    if isinstance(lease, Reason) or standing.sampling is None:
        return lease if isinstance(lease, Reason) else Reason.LEASE_UNKNOWN
    if result.fencing != lease.fencing:
        return Reason.FENCED
    if signed.signer != lease.lessee:
        return Reason.NOT_THE_LESSEE
    if result.run != run:
        return Reason.WRONG_RUN
    refused = (
        _wrong_weights(result, lease, standing.digest, max_lag)
        or _wrong_sample(result, lease, standing.seeds)
        or _wrong_text(result, standing.sampling)
    )
    if refused is not None:
        return refused
    if prior is not None:
        return Reason.DUPLICATE
    if not is_signed_by(signed.signer, signed.signature, SampleResult.domain, signed.body):
        return Reason.BAD_SIGNATURE
    return Accepted.NEW


def lag_allowed(step: int, version: int, max_lag: int) -> bool:
    """Lag of a sample: the version entering the step that consumes it, less the version that generated it."""
    return 0 <= step - version <= max_lag


def _wrong_weights(
    result: SampleResult, lease: LeaseGranted, published: StateDigest | None, max_lag: int
) -> Reason | None:
    if not lag_allowed(result.target_step, result.version, max_lag):
        return Reason.LAG
    if (result.version, result.manifest_hash) != (lease.version, lease.manifest_hash):
        return Reason.WRONG_MANIFEST
    if not result.digest == lease.digest == published:
        return Reason.WRONG_DIGEST
    return None


def _wrong_sample(result: SampleResult, lease: LeaseGranted, seeds: Mapping[Slot, int]) -> Reason | None:
    seed = seeds.get((result.prompt, result.sample))
    if seed is None or result.target_step != lease.step:
        return Reason.NOT_IN_LEASE
    return None if result.seed == seed else Reason.WRONG_SEED


def _wrong_text(result: SampleResult, sampling: Sampling) -> Reason | None:
    tokens, logprobs = result.tokens, result.logprobs
    if not 1 <= len(tokens) <= sampling.max_tokens or max(tokens) >= sampling.vocabulary:
        return Reason.BAD_TOKENS
    if len(logprobs) != len(tokens) or not _are_logprobs(logprobs):
        return Reason.BAD_LOGPROBS
    stops = frozenset(sampling.stop_tokens)
    if not stops.isdisjoint(tokens[:-1]):
        return Reason.BAD_FINISH
    ended = tokens[-1] in stops
    if result.finish == "stop":
        return None if ended else Reason.BAD_FINISH
    return None if not ended and len(tokens) == sampling.max_tokens else Reason.BAD_FINISH


def _are_logprobs(logprobs: tuple[float, ...]) -> bool:
    """Whether each is finite and at most 0. A finite sum has no NaN and no infinity in it, which is quick to see."""
    if math.isfinite(sum(logprobs)):
        return max(logprobs) <= 0
    return all(-math.inf < logprob <= 0 for logprob in logprobs)
