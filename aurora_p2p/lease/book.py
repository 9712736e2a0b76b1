"""The book of samples: a fold over the records that the ledger keeps.

A sample is in exactly one of OPEN, LEASED, ADMITTED:

    OPEN --LeaseGranted--> LEASED --SampleAdmitted--> ADMITTED        LEASED --LeaseClosed--> OPEN

`apply` is the only way to change the book, in service and when a restarted host replays its ledger, so both see the
same rules. A record that contradicts the book is our own bug and raises ShapeError. Decisions are in pool.py.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from aurora_p2p.errors import ShapeError
from aurora_p2p.lease.admission import Prior, Standing
from aurora_p2p.lease.events import (
    LeaseClosed,
    LeaseGranted,
    PoolRecord,
    ResultRefused,
    SampleAdmitted,
    Slot,
    StepForgotten,
    VersionPublished,
)
from aurora_p2p.types import LeaseId, ManifestHash, PeerId, StateDigest, Step, Version
from aurora_p2p.wire.codec import hash_of
from aurora_p2p.wire.control import Reason, SampleResult
from aurora_p2p.wire.trainer import Rollout, Rollouts, SubmitPrompts

MAX_CLOSED = 4096
"""Closed leases whose reason is remembered; a result for an older one is told LEASE_UNKNOWN."""
KEPT_STEPS = 1
"""Consumed steps kept so that a resubmission after a lost acknowledgement is still acknowledged."""


@dataclass(slots=True)
class LiveLease:
    terms: LeaseGranted
    granted: float
    seeds: dict[Slot, int]
    """Of the samples not admitted yet."""
    tokens: int = 0
    """Admitted so far."""
    renewed: float = -math.inf
    renewals: int = 0
    """Since the last sample was admitted."""

    @property
    def deadline(self) -> float:
        return max(self.granted, self.renewed) + self.terms.seconds


@dataclass(slots=True)
class Publication:
    digest: StateDigest
    manifests: set[ManifestHash]


@dataclass(slots=True)
class StepWork:
    """One step's samples. `open`: prompt -> sample indices, ascending; prompts with none are absent."""

    submitted: SubmitPrompts
    open: dict[int, list[int]]
    admitted: dict[Slot, tuple[Prior, Rollout]] = field(default_factory=dict)
    by_peer: Counter[PeerId] = field(default_factory=Counter)
    """Samples leased to or admitted from each peer."""
    by_group: Counter[tuple[PeerId, int]] = field(default_factory=Counter)
    """The same for each (peer, prompt)."""
    first_grant: float | None = None
    last_admission: float = 0.0
    _open_count: int = field(init=False)

    def __post_init__(self) -> None:
        self._open_count = sum(map(len, self.open.values()))

    @property
    def total(self) -> int:
        return len(self.submitted.prompts) * self.submitted.group

    @property
    def complete(self) -> bool:
        return len(self.admitted) == self.total

    @property
    def seconds(self) -> float:
        """First grant to last admission."""
        return 0.0 if self.first_grant is None else self.last_admission - self.first_grant

    def complete_groups(self) -> set[int]:
        """Prompts whose samples are all admitted."""
        counts = Counter(prompt for prompt, _ in self.admitted)
        return {prompt for prompt, count in counts.items() if count == self.submitted.group}

    def rollouts(self) -> Rollouts:
        """Every sample of the complete groups, and how much was admitted of the others."""
        groups = self.complete_groups()
        taken, short = list[Rollout](), list[Rollout]()
        for slot in sorted(self.admitted):
            (taken if slot[0] in groups else short).append(self.admitted[slot][1])
        tokens, short_tokens = (sum(len(one.tokens) for one in some) for some in (taken, short))
        left_out = len(self.submitted.prompts) - len(groups)
        step = Step(self.submitted.step)
        return Rollouts(step, tuple(taken), self.seconds, tokens, left_out, len(short), short_tokens)

    def open_samples(self) -> int:
        """How many are in `open`; counted along, for a large step has too many prompts to look through at each ask."""
        return self._open_count

    def pick(self, peer: PeerId, count: int, part: float, *, alone: bool) -> list[Slot]:
        """Up to `count` open samples for `peer`, whose share of the step is `part` (0 to 1).

        It takes its part of every group first. Unless it is alone, the last sample of a group never goes to the node
        that holds all others. Samples of one prompt stay together: engines share its prefix.
        """
        group = self.submitted.group
        fair = math.ceil(group * (min(part, 0.5) if alone else part))
        most = group if alone or group == 1 else group - 1
        picked: Counter[int] = Counter()
        for cap in (min(fair, most), most):
            for prompt, samples in self.open.items():
                if count == 0:
                    break
                room = cap - self.by_group[peer, prompt] - picked[prompt]
                more = max(0, min(room, len(samples) - picked[prompt], count))
                picked[prompt] += more
                count -= more
        return [(prompt, sample) for prompt, taken in picked.items() for sample in self.open[prompt][:taken]]

    def may_take(self, peer: PeerId, slots: Iterable[Slot], *, alone: bool) -> bool:
        """Whether `pick` could give `peer` any of `slots` once they are open."""
        group = self.submitted.group
        most = group if alone or group == 1 else group - 1
        return any(self.by_group[peer, prompt] < most for prompt, _ in slots)

    def take(self, peer: PeerId, slot: Slot) -> None:
        """The sample leaves OPEN for `peer`. Raises ShapeError when it is not there."""
        prompt, sample = slot
        samples = self.open.get(prompt, [])
        if sample not in samples:
            raise ShapeError(f"sample {sample} of prompt {prompt} in step {self.submitted.step} is not open")
        samples.remove(sample)
        if not samples:
            del self.open[prompt]
        self._open_count -= 1
        self.by_peer[peer] += 1
        self.by_group[peer, prompt] += 1

    def give_back(self, peer: PeerId, slot: Slot) -> None:
        prompt, sample = slot
        insort(self.open.setdefault(prompt, []), sample)
        self._open_count += 1
        self.by_peer[peer] -= 1
        self.by_group[peer, prompt] -= 1


class Book:
    """Everything the ledger knows, in memory. Read freely; change through `apply` only."""

    def __init__(self, max_lag: int) -> None:
        self._max_lag = max_lag
        self.versions: dict[Version, Publication] = {}
        self.steps: dict[Step, StepWork] = {}
        self.live: dict[LeaseId, LiveLease] = {}
        self.held: dict[PeerId, dict[LeaseId, LiveLease]] = {}
        """The live leases of each peer that has any: a large swarm asks more often than one can look through `live`."""
        self._nearest = math.inf
        """No live lease has an earlier deadline."""
        self.refused: Counter[Reason] = Counter()
        self._closed: dict[LeaseId, Reason] = {}

    @property
    def newest(self) -> Version:
        """The newest published version, -1 before the first. Steps before it are consumed."""
        return max(self.versions, default=Version(-1))

    def apply(self, record: PoolRecord, *, now: float) -> None:
        """Take one record. A lease's deadline counts from `now`: a restarted host gives it its whole duration."""
        match record:
            case VersionPublished():
                self._publish(record)
            case SubmitPrompts():
                rows = {prompt: list(range(record.group)) for prompt in range(len(record.prompts))}
                self.steps[Step(record.step)] = StepWork(record, rows)
            case LeaseGranted():
                self._grant(record, now)
            case SampleAdmitted():
                self._admit(record, now)
            case LeaseClosed():
                self._close(record)
            case ResultRefused():
                self.refused[record.reason] += record.count
            case StepForgotten():
                del self.steps[record.step]

    def standing(self, result: SampleResult) -> Standing:
        """What admission must know about the lease and the sample that `result` names."""
        work = self.steps.get(result.target_step)
        entry = work.admitted.get((result.prompt, result.sample)) if work else None
        prior = entry[0] if entry else None
        lease = self.live.get(result.lease)
        if lease is None:
            return Standing(self._closed.get(result.lease, Reason.LEASE_UNKNOWN), {}, None, None, prior)
        published = self.versions.get(lease.terms.version)
        sampling = self.steps[lease.terms.step].submitted.sampling
        return Standing(lease.terms, lease.seeds, sampling, published.digest if published else None, prior)

    def renew(self, lease: LiveLease, now: float) -> None:
        """A lease's time begins anew. The ledger need not know: a restart begins it anew as well."""
        lease.renewed, lease.renewals = now, lease.renewals + 1

    def late(self, now: float) -> list[LiveLease]:
        """Live leases whose deadline has passed. Costs nothing while none can be late."""
        if now < self._nearest:
            return []
        self._nearest = min((lease.deadline for lease in self.live.values() if lease.deadline > now), default=math.inf)
        return [lease for lease in self.live.values() if lease.deadline <= now]

    def pending(self, peer: PeerId) -> int:
        """Samples that a peer holds and has not sent."""
        return sum(len(lease.seeds) for lease in self.held.get(peer, {}).values())

    def closed_reason(self, lease: LeaseId) -> Reason:
        return self._closed.get(lease, Reason.LEASE_UNKNOWN)

    def _publish(self, record: VersionPublished) -> None:
        known = self.versions.get(record.version)
        if known is not None and known.digest == record.digest:
            known.manifests.add(record.manifest_hash)
        else:
            self.versions[record.version] = Publication(record.digest, {record.manifest_hash})
        for version in [version for version in self.versions if version < self.newest - self._max_lag]:
            del self.versions[version]

    def _grant(self, record: LeaseGranted, now: float) -> None:
        work = self.steps[record.step]
        for sample in record.samples:
            work.take(record.lessee, (sample.prompt, sample.sample))
        seeds = {(sample.prompt, sample.sample): sample.seed for sample in record.samples}
        lease = self.live[record.lease] = LiveLease(record, now, seeds)
        self.held.setdefault(record.lessee, {})[record.lease] = lease
        self._nearest = min(self._nearest, lease.deadline)
        work.first_grant = now if work.first_grant is None else work.first_grant

    def _admit(self, record: SampleAdmitted, now: float) -> None:
        result, node = record.result, record.signed.signer
        slot, work = (result.prompt, result.sample), self.steps[result.target_step]
        if slot in work.admitted:
            raise ShapeError(f"sample {slot} of step {result.target_step} is admitted twice")
        lease = self.live.get(result.lease)
        if lease is not None and slot in lease.seeds:
            del lease.seeds[slot]
            lease.tokens += len(result.tokens)
            lease.renewals = 0
        else:  # only in a replay: the ledger no longer has the lease
            work.take(node, slot)
        rollout = Rollout(*slot, result.version, node, result.tokens, result.logprobs, result.finish)
        work.admitted[slot] = (Prior(result.lease, node, hash_of(record.signed.body)), rollout)
        work.first_grant = now if work.first_grant is None else work.first_grant
        work.last_admission = now

    def _close(self, record: LeaseClosed) -> None:
        lease = self.live.pop(record.lease)
        mine = self.held[lease.terms.lessee]
        del mine[record.lease]
        if not mine:
            del self.held[lease.terms.lessee]
        work = self.steps[lease.terms.step]
        for slot in lease.seeds:
            work.give_back(lease.terms.lessee, slot)
        self._closed[record.lease] = record.reason
        if len(self._closed) > MAX_CLOSED:
            del self._closed[next(iter(self._closed))]
