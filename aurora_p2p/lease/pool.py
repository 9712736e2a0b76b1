"""The work pool: which node works on which samples, at which version, until when.

Sans-IO. Nodes pull: an ask is answered with a lease of open samples of one target step, or with a named refusal.

    version t enters optimizer step t     a sample's lag = its target step - its version, in 0 .. max_lag
    publishing version v consumes every step before v; its leases end, its samples are refused as TOO_LATE

Invariants: a sample is admitted at most once, and only under a live lease (book.py, admission.py); fencing tokens
strictly increase, across restarts too; the seed of a sample is the same however often it is issued; with two eligible
nodes no group comes from one node alone; no node is given more than it can finish within the longest lease.

Not covered: whether the sampler told the truth (honesty), who is a member (the host asks the roster first).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import structs

from aurora_p2p.errors import UsageError, WireError
from aurora_p2p.lease.admission import Accepted, judge, lag_allowed
from aurora_p2p.lease.book import KEPT_STEPS, Book, LiveLease, StepWork
from aurora_p2p.lease.events import (
    Completed,
    Effect,
    Ended,
    Event,
    Forget,
    From,
    LeaseClosed,
    Persist,
    PoolRecord,
    Reply,
    ResultRefused,
    SampleAdmitted,
    StepForgotten,
    VersionPublished,
)
from aurora_p2p.lease.fleet import Fleet, LeaseOptions, Node
from aurora_p2p.lease.split import Splits
from aurora_p2p.lease.status import PoolStatus, status_of, why_waiting
from aurora_p2p.lease.terms import lease_message, lease_record
from aurora_p2p.types import PeerId, RunId, Step
from aurora_p2p.wire.codec import decode
from aurora_p2p.wire.control import (
    LeaseRequest,
    Noted,
    Reason,
    Receipt,
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

MAX_STEP_SAMPLES = 1 << 20
"""What one Rollouts message carries (wire/trainer.py)."""
OVERTIME = frozenset({Reason.LEASE_EXPIRED, Reason.FENCED})
"""How a lease ends whose node took too long: by its deadline, or taken back for another node."""
MAX_STEPS = 64
"""Steps submitted ahead: far more than the lag window ever uses."""


class WorkPool:
    """One run's pool. `epoch` must grow with every start of the host (the ledger counts them): it leads the fencing
    tokens, so that they increase across restarts without being written down."""

    def __init__(self, run: RunId, secret: bytes, epoch: int, options: LeaseOptions | None = None) -> None:
        self.run = run
        self.options = options or LeaseOptions()
        self.book = Book(self.options.max_lag)
        self.fleet = Fleet(self.options)
        self._splits = Splits(self.fleet, self.book)
        self._secret = secret
        self._fencing = epoch << 32

    def restore(self, records: Iterable[PoolRecord], *, now: float) -> list[Effect]:
        """Replay the ledger into a new pool. Live leases get their whole duration again. The effects hold no Reply.

        Raises UsageError when admitted samples lie outside a max_lag that was lowered since.
        """
        for record in records:
            if isinstance(record, SampleAdmitted):
                step, version = record.result.target_step, record.result.version
                if not lag_allowed(step, version, self.options.max_lag):
                    raise UsageError(
                        f"step {step} has samples of version {version}, outside max_lag {self.options.max_lag}",
                        hint="finish the run with the max_lag it was started with",
                    )
            self.book.apply(record, now=now)
        return self._consume(now)

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Take one event. Deadlines that have passed take effect first."""
        effects = self.expire(now=now)
        match event:
            case From(peer, LeaseRequest() as request):
                effects += self._ask(peer, request, now)
            case From(peer, Submit() as submit):
                effects += self._submit(peer, submit, now)
            case From(peer, Release() as release):
                effects += self._release(peer, release, now)
            case From(peer, Renew() as renew):
                effects.append(Reply(self._renew(peer, renew, now)))
            case Forget(peer):
                effects += self._forget(peer, now)
            case SubmitPrompts():
                effects += self._submit_prompts(event, now)
            case TakeRollouts():
                effects.append(Reply(self._take(event, now)))
            case VersionPublished():
                self.book.apply(event, now=now)
                effects += self._consume(now)
        return effects

    def expire(self, *, now: float) -> list[Effect]:
        """End the leases whose deadline has passed; their samples return at once."""
        return [effect for lease in self.book.late(now) for effect in self._end(lease, Reason.LEASE_EXPIRED, now)]

    def next_deadline(self) -> float:
        """When `expire` next has something to do; infinity when no lease is live."""
        return min((lease.deadline for lease in self.book.live.values()), default=math.inf)

    def status(self, *, now: float) -> PoolStatus:
        return status_of(self.book, self.fleet, now)

    # ---- nodes

    def _ask(self, peer: PeerId, request: LeaseRequest, now: float) -> list[Effect]:
        refusal = self._unfit(request)
        if refusal is not None:
            return [Reply(refusal)]
        node = self.fleet.asked(peer, request, now)
        held = list(self.book.held.get(peer, {}).values())
        if len(held) >= self.options.leases_per_node:
            return [self._no_work(node, f"you hold {len(held)} leases already")]
        pending = sum(len(lease.seeds) for lease in held)
        for step in range(max(request.version, self.book.newest), request.version + self.options.max_lag + 1):
            work = self.book.steps.get(Step(step))
            if work is not None and work.open:
                granted = self._lease(peer, node, request, pending, work, now)
                if granted:
                    return granted
        if not held:
            rescued = self._rescue(peer, node, request, now)
            if rescued:
                return rescued
        return [self._no_work(node, "no sample is open for you at this version")]

    def _rescue(self, peer: PeerId, node: Node, request: LeaseRequest, now: float) -> list[Effect]:
        """Take an overdue lease back for an idle node that would be done with it sooner; [] when there is none."""
        steps = range(max(request.version, self.book.newest), request.version + self.options.max_lag + 1)
        overdue = [
            (self.fleet.rescue_seconds(node, lease, now), lease)
            for lease in self.book.live.values()
            if lease.terms.step in steps and lease.terms.lessee != peer and self.fleet.is_overdue(lease, now)
        ]
        for saved, lease in sorted(overdue, key=lambda entry: -entry[0]):
            work = self.book.steps[lease.terms.step]
            alone = self._splits.of(work, peer, now).alone
            if saved > 0 and work.may_take(peer, lease.seeds, alone=alone):
                ended = self._end(lease, Reason.FENCED, now)
                return [*ended, *self._lease(peer, node, request, 0, work, now)]
        return []

    def _unfit(self, request: LeaseRequest) -> Refusal | None:
        """Why what the node holds cannot be worked with."""
        newest, known = self.book.newest, self.book.versions.get(request.version)
        if request.run != self.run:
            return Refusal(Reason.WRONG_RUN, f"this host works on run {self.run.hex()}")
        if request.version < newest - self.options.max_lag:
            return Refusal(Reason.VERSION_TOO_OLD, f"version {newest} is published")
        if known is None:
            return Refusal(Reason.VERSION_UNKNOWN, f"version {request.version} was never published here")
        if request.digest != known.digest:
            return Refusal(Reason.WRONG_DIGEST, f"your weights are not those of version {request.version}")
        if request.manifest_hash not in known.manifests:
            return Refusal(Reason.WRONG_MANIFEST, f"that is no manifest of version {request.version}")
        return None

    def _no_work(self, node: Node, detail: str) -> Reply:
        node.turned_away = True
        return Reply(Refusal(Reason.NO_WORK, detail, self.options.tail_seconds))

    def _lease(
        self, peer: PeerId, node: Node, request: LeaseRequest, held: int, work: StepWork, now: float
    ) -> list[Effect]:
        """A lease of the step's open samples; [] when there is none for this node."""
        max_tokens = work.submitted.sampling.max_tokens
        split = self._splits.of(work, peer, now)
        allowed = self._splits.allowance(split, work, peer)
        count = self.fleet.lease_samples(node, allowed, held, request.max_samples, max_tokens)
        slots = work.pick(peer, count, split.part(peer), alone=split.alone)
        if not slots:
            return []
        self._fencing += 1
        split.given[peer] += len(slots)
        node.turned_away = False
        seconds = self.fleet.lease_seconds(node, held + len(slots), max_tokens)
        draft = lease_record(self._secret, self._fencing, peer, request, slots, work.submitted)
        record = structs.replace(draft, seconds=seconds)
        self.book.apply(record, now=now)
        return [Persist(record), Reply(lease_message(self.run, record, work.submitted))]

    def _submit(self, peer: PeerId, submit: Submit, now: float) -> list[Effect]:
        self.fleet.node(peer).claim = submit.tokens_per_second
        effects: list[Effect] = []
        receipts = []
        for signed in submit.results:
            receipt, caused = self._result(peer, signed, now)
            receipts.append(receipt)
            effects += caused
        return [*effects, Reply(Receipts(tuple(receipts)))]

    def _result(self, peer: PeerId, signed: Signed, now: float) -> tuple[Receipt, list[Effect]]:
        try:
            result = decode(signed.body, SampleResult)
        except WireError:
            return self._refuse(peer, 0, 0, Reason.MALFORMED, now)
        if signed.signer != peer:  # nobody hands in another's work, or has it acknowledged
            return self._refuse(peer, result.prompt, result.sample, Reason.NOT_THE_LESSEE, now)
        verdict = judge(signed, result, self.book.standing(result), run=self.run, max_lag=self.options.max_lag)
        if isinstance(verdict, Reason):
            return self._refuse(peer, result.prompt, result.sample, verdict, now)
        receipt = Receipt(result.prompt, result.sample, accepted=True)
        return receipt, self._admit(SampleAdmitted(signed, result), now) if verdict is Accepted.NEW else []

    def _refuse(
        self, peer: PeerId, prompt: int, sample: int, reason: Reason, now: float
    ) -> tuple[Receipt, list[Effect]]:
        record = ResultRefused(reason)
        self.book.apply(record, now=now)
        self.fleet.node(peer).refused[reason] += 1
        return Receipt(prompt, sample, accepted=False, reason=reason), [Persist(record)]

    def _admit(self, record: SampleAdmitted, now: float) -> list[Effect]:
        result = record.result
        self.book.apply(record, now=now)
        self.fleet.admitted(record.signed.signer, len(result.tokens))
        effects: list[Effect] = [Persist(record)]
        lease = self.book.live[result.lease]
        if not lease.seeds:
            effects += self._close(lease, Reason.LEASE_SPENT, now)
        if self.book.steps[result.target_step].complete:
            effects.append(Completed(result.target_step))
        return effects

    def _release(self, peer: PeerId, release: Release, now: float) -> list[Effect]:
        lease = self._held(peer, release)
        if isinstance(lease, Reason):
            return [Reply(Refusal(lease))]
        samples = len(lease.seeds)
        return [*self._end(lease, Reason.LEASE_SPENT, now), Reply(Released(samples))]

    def _renew(self, peer: PeerId, renew: Renew, now: float) -> Renewed | Refusal:
        lease = self._held(peer, renew)
        if isinstance(lease, Reason):
            return Refusal(lease)
        if lease.renewals >= self.options.max_renewals:
            return Refusal(Reason.NOT_RENEWED, f"{lease.renewals} renewals without a sample")
        self.book.renew(lease, now)
        return Renewed(lease.terms.seconds)

    def _held(self, peer: PeerId, message: Release | Renew) -> LiveLease | Reason:
        """The live lease that its lessee speaks of, or why there is none."""
        lease = self.book.live.get(message.lease)
        if lease is None:
            return self.book.closed_reason(message.lease)
        if lease.terms.lessee != peer:
            return Reason.NOT_THE_LESSEE
        return lease if lease.terms.fencing == message.fencing else Reason.FENCED

    def _forget(self, peer: PeerId, now: float) -> list[Effect]:
        node = self.fleet.nodes.get(peer)
        if node is not None:
            node.asked = -math.inf
        held = list(self.book.held.get(peer, {}).values())
        return [effect for lease in held for effect in self._end(lease, Reason.LEASE_EXPIRED, now)]

    # ---- leases and steps

    def _close(self, lease: LiveLease, reason: Reason, now: float) -> list[Effect]:
        record = LeaseClosed(lease.terms.lease, reason)
        self.book.apply(record, now=now)
        if lease.tokens or reason in OVERTIME:
            self.fleet.lease_ended(lease.terms.lessee, lease.granted, lease.tokens, now)
        return [Persist(record)]

    def _end(self, lease: LiveLease, reason: Reason, now: float) -> list[Effect]:
        """Close a lease that still has samples."""
        node = self.fleet.node(lease.terms.lessee)
        node.withheld += len(lease.seeds) if reason in OVERTIME else 0
        ended = Ended(lease.terms.lease, lease.terms.lessee, reason, len(lease.seeds))
        return [*self._close(lease, reason, now), ended]

    def _consume(self, now: float) -> list[Effect]:
        """What the newest version has consumed: leases end, steps older than a resubmission are forgotten."""
        newest = self.book.newest
        late = [lease for lease in self.book.live.values() if lease.terms.step < newest]
        effects = [effect for lease in late for effect in self._end(lease, Reason.TOO_LATE, now)]
        for step in [step for step in self.book.steps if step < newest - KEPT_STEPS]:
            record = StepForgotten(step)
            self.book.apply(record, now=now)
            effects.append(Persist(record))
        return effects

    # ---- the trainer

    def _submit_prompts(self, event: SubmitPrompts, now: float) -> list[Effect]:
        known = self.book.steps.get(event.step)
        if known is not None and known.submitted == event:
            return [Reply(Noted())]
        problem = self._problem_with(event, known)
        if problem:
            return [Reply(Failed(problem))]
        self.book.apply(event, now=now)
        for node in self.fleet.nodes.values():
            node.turned_away = False
        return [Persist(event), Reply(Noted())]

    def _problem_with(self, event: SubmitPrompts, known: StepWork | None) -> str:
        vocabulary = event.sampling.vocabulary
        if known is not None:
            return f"step {event.step} was submitted before, with other prompts; take its rollouts first"
        if event.step < self.book.newest:
            return f"step {event.step} is consumed: version {self.book.newest} is published"
        if len(event.prompts) * event.group > MAX_STEP_SAMPLES:
            return f"step {event.step} has more than {MAX_STEP_SAMPLES} samples"
        if len(self.book.steps) >= MAX_STEPS:
            return f"{MAX_STEPS} steps are waiting already"
        if any(max(prompt) >= vocabulary for prompt in event.prompts):
            return f"a prompt of step {event.step} has a token outside the vocabulary of {vocabulary}"
        return ""

    def _take(self, take: TakeRollouts, now: float) -> Rollouts | Waiting | Failed:
        """Consumption: the version that enters step `step` is `step`, so its samples are within the lag here too."""
        step, work = take.step, self.book.steps.get(take.step)
        if step < self.book.newest:
            return Failed(f"step {step} is consumed: version {self.book.newest} is published")
        if work is None:
            return Failed(f"step {step} was never submitted")
        if not work.complete and (take.short == "wait" or not work.complete_groups()):
            return Waiting(step, len(work.admitted), work.total, why_waiting(self.book, self.fleet, step, now))
        return work.rollouts()
