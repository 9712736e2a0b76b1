"""The lease loop of a node: commit, ask, generate, sign.

    COMMIT --> ASK --grant--> GENERATE, each finished sample to submitting.py --> COMMIT ...
       |        \\--refusal--> wait for newer weights or the time the host named
       \\--paused, or no trust in the publisher--> wait for either to end; newer weights are committed meanwhile

Invariants: one lease at a time is generated; a lease's deadline counts from before the request was sent, or its last
renewal's; work on a lease that expired, or that the host has taken back, is aborted at once; every finished sample is
signed and queued as soon as it exists; a lease is worked on only with a fresh HEAD. A drain, a pause and an engine that
is wanted back end every wait but that for an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from aurora_node.config import NodeConfig
from aurora_node.link import HostLink
from aurora_node.presence import Stance
from aurora_node.recent import RecentTokens
from aurora_node.renewing import beside, keep_renewed
from aurora_node.submitting import Finished, Submissions
from aurora_node.weights import Weights
from aurora_p2p.artifact.chain import Checkpoint
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.engine.client import EngineClient
from aurora_p2p.errors import AuroraError, StaleError, UnreachableError, WireError
from aurora_p2p.lease.share import updated_rate
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import reach
from aurora_p2p.local.output import clean
from aurora_p2p.types import StateDigest, Version
from aurora_p2p.wire.control import (
    Lease,
    LeaseRequest,
    Reason,
    Refusal,
    Release,
    SampleResult,
    SignedLeaseRequest,
)
from aurora_p2p.wire.engine import Generated, Samples
from aurora_p2p.wire.limits import MAX_LEASE_SAMPLES
from aurora_p2p.wire.signed import Signed, seal

ASK_SECONDS = 15.0
"""Answer to a lease request: the host waits up to 2 s for work to appear, the rest is the network."""
RETRY_SECONDS = 1.0
WAIT_SECONDS = 5.0
"""Longest time between two lease requests of an idle node."""
IDLE_REASONS = frozenset({Reason.VERSION_TOO_OLD, Reason.VERSION_UNKNOWN})
"""Refusals that only newer weights can end."""


@dataclass(slots=True)
class WorkFigures:
    """What the status shows."""

    state: str = "starting"
    leases: int = 0
    samples: int = 0
    tokens: int = 0
    admitted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    tokens_per_second: float | None = None
    """EMA over generated batches; None before the first."""
    lease_step: int = -1
    lease_done: int = 0
    lease_size: int = 0
    lease_ends: float = 0.0
    """CLOCK_BOOTTIME; 0 while no lease is worked on."""
    started: float = field(default_factory=boottime)
    recent: RecentTokens = field(default_factory=RecentTokens)


def _unheard(_name: str, **_fields: Any) -> None:
    """Nobody keeps a log."""


class LeaseWorker:
    """Works for one swarm with one engine until drained."""

    def __init__(
        self,
        identity: Identity,
        config: NodeConfig,
        link: HostLink,
        weights: Weights,
        figures: WorkFigures,
        note: Callable[..., None] = _unheard,
    ) -> None:
        """note: Output.note, told of each lease and of what became of it."""
        self._identity, self._config, self._link, self._weights = identity, config, link, weights
        self._note, self.figures = note, figures
        self.submissions = Submissions(link, figures, note)
        self._draining = self._leaving = self._standing_still = False
        self._stance = Stance()
        self.submissions.on_lost = self._lost
        self._generating: trio.CancelScope | None = None
        self._in_hand: Lease | None = None
        self._resting: trio.CancelScope | None = None
        self._refusal = ""

    @property
    def drained(self) -> bool:
        """Whether `drain` was called."""
        return self._draining

    def stand_still(self, still: bool) -> None:
        """Whether to take no lease, because the publisher of this generation contradicted itself."""
        self._standing_still = still
        self._wake()

    def stand(self, stance: Stance) -> None:
        """Take leases or none, as presence.py says; the lease in hand may have to go back."""
        self._stance = stance
        self._wake()
        if self._stance.hand_back and self._generating is not None:
            self._generating.cancel()

    def leave(self) -> None:
        """End `run` and free the engine: what is not finished goes back; what is, is still sent."""
        self._leaving = True
        self._wake()
        if self._generating is not None:
            self._generating.cancel()

    def drain(self) -> None:
        """End `run` for good, after handing back what is not finished and sending what is."""
        self._draining = True
        self.leave()

    def _wake(self) -> None:
        if self._resting is not None:
            self._resting.cancel()

    async def run(self, engine: EngineClient) -> None:
        """Work until drained or told to leave. `submissions.run` must run beside it.

        Raises ChildError when the engine dies, CheckpointError when its weights are wrong.
        """
        self._leaving = self._draining
        while not self._leaving:
            await self._one_round(engine)
        if self._draining:
            await self.submissions.wait_until_sent()

    async def _one_round(self, engine: EngineClient) -> None:
        held = await self._weights.commit_ready()
        if held is None:
            await self._rest("waiting for the first weights", Version(-1))
            return
        if self._standing_still:
            await self._rest("standing still: the publisher signed two artifacts with one number", held.version)
            return
        if not self._stance.working:
            self._weights.busy()  # idle by its owner's will: nothing that newer weights could end
            await self._rest(f"paused: {self._stance.detail}", held.version)
            return
        self._weights.idle()
        self.figures.state, asked = "asking for work", boottime()
        try:
            lease = await self._ask(held)
        except (UnreachableError, StaleError, WireError) as error:
            await self._rest(f"no lease: {error}", self._weights.newest, RETRY_SECONDS)
            return
        if isinstance(lease, Refusal):
            await self._wait(lease, held)
            return
        await self._work(engine, lease, asked)

    async def _rest(self, why: str, version: Version, seconds: float = WAIT_SECONDS) -> None:
        """Show `why`, and wait for newer weights than `version`, for a change of plans, or for `seconds`."""
        self.figures.state = why
        if self._leaving:
            return
        with trio.CancelScope() as self._resting:
            await self._weights.wait_for_newer(version, seconds)
        self._resting = None

    async def _wait(self, refusal: Refusal, held: Checkpoint) -> None:
        """Until newer weights are staged, at most as long as the refusal deserves."""
        if refusal.reason.value != self._refusal:  # once, not at every question
            self._refusal = refusal.reason.value
            self._note("lease-refused", reason=self._refusal, version=held.version, detail=clean(refusal.detail))
        again = WAIT_SECONDS if refusal.reason in IDLE_REASONS else refusal.retry_seconds or RETRY_SECONDS
        await self._rest(f"idle: {self._refusal.replace('_', ' ')}", held.version, min(again, WAIT_SECONDS))

    async def _ask(self, held: Checkpoint) -> Lease | Refusal:
        """A lease whose signature, HEAD, lessee and size are right, or why there is none."""
        if held.manifest is None or held.digest is None:
            raise WireError("the weights held have no final page")
        request = LeaseRequest(
            nonce=self._link.new_nonce(),
            run=self._link.run,
            version=held.version,
            manifest_hash=held.manifest,
            digest=held.digest,
            tokens_per_second=self.figures.tokens_per_second or 0.0,
            max_samples=MAX_LEASE_SAMPLES,
        )
        reply = await self._link.ask_lease(SignedLeaseRequest(seal(self._identity, request)), ASK_SECONDS)
        if isinstance(reply, Refusal):
            return reply
        lease = self._link.open_lease(reply)
        reach("lease.received")
        if lease.lessee != self._identity.peer or lease.version != held.version or lease.digest != held.digest:
            raise WireError("the lease is not for what this node holds")
        longest = max(len(prompt) for prompt in lease.prompts) + lease.sampling.max_tokens
        if longest > self._config.max_context_tokens or lease.seconds > self._config.max_lease_seconds:
            await self._release(lease)
            raise WireError(
                f"the lease asks for {longest} tokens in {lease.seconds:.0f} s, more than this owner allows"
            )
        return lease

    async def _work(self, engine: EngineClient, lease: Lease, asked: float) -> None:
        figures = self.figures
        figures.state, figures.leases = "generating", figures.leases + 1
        figures.lease_step, figures.lease_done, figures.lease_size = lease.target_step, 0, len(lease.samples)
        figures.lease_ends = asked + lease.seconds
        self._in_hand = lease
        self._taken(lease)
        self._weights.busy()
        misfit = ""
        try:
            with trio.move_on_after(max(asked + lease.seconds - boottime(), 0.0)) as self._generating:
                if self._leaving or self._stance.hand_back:  # asked before, granted after
                    self._generating.cancel()
                await beside(
                    partial(keep_renewed, self._link, lease, asked, self._config.max_lease_seconds, self._extend),
                    partial(self._generate, engine, lease),
                )
        except WireError as error:
            misfit = f"the lease does not fit the model: {error}"
        finally:  # also when the engine has died
            self._ended(lease, late=boottime() >= figures.lease_ends)
            self._generating, self._in_hand, figures.lease_ends = None, None, 0.0
            if figures.lease_done < figures.lease_size:
                await self._release(lease)
        if misfit:
            await self._rest(misfit, self._weights.newest, RETRY_SECONDS)

    def _extend(self, ends: float) -> None:
        """The lease in hand was renewed."""
        self.figures.lease_ends = ends
        if self._generating is not None:
            self._generating.deadline = trio.current_time() + max(ends - boottime(), 0.0)

    def _lost(self, lease: Lease) -> None:
        """The host said that the lease is over: work on it is for nothing."""
        if self._in_hand is lease and self._generating is not None:
            self._generating.cancel()

    def _taken(self, lease: Lease) -> None:
        self._refusal = ""
        self._note(
            "lease",
            lease=lease.lease.hex(),
            run=lease.run.hex(),
            step=lease.target_step,
            version=lease.version,
            samples=len(lease.samples),
            within=lease.seconds,
        )

    def _ended(self, lease: Lease, *, late: bool) -> None:
        figures = self.figures
        how = "finished" if figures.lease_done >= figures.lease_size else "expired" if late else "handed back"
        self._note(
            "lease-ended",
            lease=lease.lease.hex(),
            step=lease.target_step,
            how=how,
            done=figures.lease_done,
            size=figures.lease_size,
        )

    async def _generate(self, engine: EngineClient, lease: Lease) -> None:
        async with aclosing(engine.generate(lease.sampling, lease.prompts, lease.samples)) as batches:
            async for batch in batches:
                if batch.samples:
                    reach("samples.generated")
                    await self.submissions.put(
                        [Finished(lease, self._sign(lease, batch, one)) for one in batch.samples]
                    )
                self._count(batch)

    def _count(self, batch: Samples) -> None:
        figures = self.figures
        tokens = sum(len(sample.tokens) for sample in batch.samples)
        figures.samples += len(batch.samples)
        figures.tokens += tokens
        figures.lease_done += len(batch.samples)
        figures.recent.add(tokens, boottime())
        if batch.samples:
            self._weights.tokens_at(batch.first_token_at, batch.last_token_at, batch.version)
        if batch.done and batch.tokens_per_second > 0:
            figures.tokens_per_second = updated_rate(figures.tokens_per_second, batch.tokens_per_second, 1.0)

    def _sign(self, lease: Lease, batch: Samples, one: Generated) -> Signed:
        drawn = lease.samples[one.index]
        result = SampleResult(
            lease=lease.lease,
            fencing=lease.fencing,
            run=lease.run,
            target_step=lease.target_step,
            prompt=drawn.prompt,
            sample=drawn.sample,
            seed=drawn.seed,
            version=batch.version,
            manifest_hash=lease.manifest_hash,
            digest=StateDigest(batch.digest),
            audited=self._weights.audited,
            tokens=one.tokens,
            logprobs=one.logprobs,
            finish=one.finish,
        )
        return seal(self._identity, result)

    async def _release(self, lease: Lease) -> None:
        """Give back what is left of a lease; its deadline does the same later if the host cannot be reached."""
        with trio.CancelScope(deadline=trio.current_time() + ASK_SECONDS, shield=True):
            try:
                await self._link.release(Release(lease.lease, lease.fencing))
            except AuroraError as error:
                self.figures.state = f"could not hand the lease back: {error}"
