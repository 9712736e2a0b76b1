"""The lease loop of a node: commit, ask, generate, sign, submit.

    COMMIT --> ASK --grant--> GENERATE --> SUBMIT (beside the next lease) --> COMMIT ...
                \\--refusal--> wait for newer weights or the time the host named

Invariants: one lease at a time is generated; a lease's deadline counts from before the request was sent; work on an
expired lease is aborted at once; every finished sample is signed and sent as soon as it exists, so a node that dies
loses only what it had not sent; a lease is worked on only with a fresh HEAD.
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field

import trio

from aurora_node.config import NodeConfig
from aurora_node.link import HostLink
from aurora_node.weights import Weights
from aurora_p2p.artifact.chain import Checkpoint
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.engine.client import EngineClient
from aurora_p2p.errors import AuroraError, StaleError, UnreachableError, WireError
from aurora_p2p.lease.share import updated_rate
from aurora_p2p.local.clock import boottime
from aurora_p2p.types import StateDigest, Version
from aurora_p2p.wire.control import (
    Lease,
    LeaseRequest,
    Reason,
    Receipts,
    Refusal,
    Release,
    SampleResult,
    SignedLeaseRequest,
    Submit,
)
from aurora_p2p.wire.engine import Generated, Samples
from aurora_p2p.wire.limits import MAX_LEASE_SAMPLES
from aurora_p2p.wire.signed import Signed, seal

ASK_SECONDS = 15.0
"""Answer to a lease request: the host waits up to 2 s for work to appear, the rest is the network."""
SUBMIT_SECONDS = 20.0
SUBMIT_BATCH = 64
"""Results in one Submit (its wire limit)."""
UNSENT_BATCHES = 64
"""Generated batches that wait for the network before generating pauses: minutes of work."""
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


class LeaseWorker:
    """Works for one swarm with one engine until drained."""

    def __init__(
        self, identity: Identity, config: NodeConfig, link: HostLink, weights: Weights, figures: WorkFigures
    ) -> None:
        self._identity, self._config, self._link, self._weights = identity, config, link, weights
        self.figures = figures
        self._draining = trio.Event()
        self._standing_still = False
        self._generating: trio.CancelScope | None = None

    @property
    def drained(self) -> bool:
        """Whether `drain` was called."""
        return self._draining.is_set()

    def stand_still(self, still: bool) -> None:
        """Whether to take no lease, because the publisher of this generation contradicted itself."""
        self._standing_still = still

    def drain(self) -> None:
        """Stop after handing back what is not finished."""
        self._draining.set()
        if self._generating is not None:
            self._generating.cancel()

    async def run(self, engine: EngineClient) -> None:
        """Work until drained. Raises ChildError when the engine dies, CheckpointError when its weights are wrong."""
        sender, receiver = trio.open_memory_channel[tuple[Lease, list[Signed]]](UNSENT_BATCHES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._submit_all, receiver)
            async with sender:
                while not self._draining.is_set():
                    await self._one_round(engine, sender)

    async def _one_round(
        self, engine: EngineClient, sender: trio.MemorySendChannel[tuple[Lease, list[Signed]]]
    ) -> None:
        held = await self._weights.commit_ready()
        if held is None:
            self.figures.state = "waiting for the first weights"
            await self._weights.wait_for_newer(Version(-1), WAIT_SECONDS)
            return
        if self._standing_still:
            self.figures.state = "standing still: the publisher signed two artifacts with one number"
            await trio.sleep(WAIT_SECONDS)
            return
        self._weights.idle()
        self.figures.state, asked = "asking for work", boottime()
        try:
            lease = await self._ask(held)
        except (UnreachableError, StaleError, WireError) as error:
            self.figures.state = f"no lease: {error}"
            await trio.sleep(RETRY_SECONDS)
            return
        if isinstance(lease, Refusal):
            await self._wait(lease, held)
            return
        await self._work(engine, lease, asked, sender)

    async def _wait(self, refusal: Refusal, held: Checkpoint) -> None:
        """Until newer weights are staged, at most as long as the refusal deserves."""
        self.figures.state = f"idle: {refusal.reason.value.replace('_', ' ')}"
        again = WAIT_SECONDS if refusal.reason in IDLE_REASONS else refusal.retry_seconds or RETRY_SECONDS
        await self._weights.wait_for_newer(held.version, min(again, WAIT_SECONDS))

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
        if lease.lessee != self._identity.peer or lease.version != held.version or lease.digest != held.digest:
            raise WireError("the lease is not for what this node holds")
        longest = max(len(prompt) for prompt in lease.prompts) + lease.sampling.max_tokens
        if longest > self._config.max_context_tokens or lease.seconds > self._config.max_lease_seconds:
            await self._release(lease)
            raise WireError(
                f"the lease asks for {longest} tokens in {lease.seconds:.0f} s, more than this owner allows"
            )
        return lease

    async def _work(
        self,
        engine: EngineClient,
        lease: Lease,
        asked: float,
        sender: trio.MemorySendChannel[tuple[Lease, list[Signed]]],
    ) -> None:
        figures = self.figures
        figures.state, figures.leases = "generating", figures.leases + 1
        figures.lease_step, figures.lease_done, figures.lease_size = lease.target_step, 0, len(lease.samples)
        self._weights.busy()
        try:
            with trio.move_on_after(max(asked + lease.seconds - boottime(), 0.0)) as self._generating:
                if self.drained:  # asked before, granted after
                    self._generating.cancel()
                await self._generate(engine, lease, sender)
        except WireError as error:
            figures.state = f"the lease does not fit the model: {error}"
            await trio.sleep(RETRY_SECONDS)
        finally:  # also when the engine has died
            self._generating = None
            if figures.lease_done < figures.lease_size:
                await self._release(lease)

    async def _generate(
        self, engine: EngineClient, lease: Lease, sender: trio.MemorySendChannel[tuple[Lease, list[Signed]]]
    ) -> None:
        async with aclosing(engine.generate(lease.sampling, lease.prompts, lease.samples)) as batches:
            async for batch in batches:
                if batch.samples:
                    await sender.send((lease, [self._sign(lease, batch, one) for one in batch.samples]))
                self._count(batch)

    def _count(self, batch: Samples) -> None:
        figures = self.figures
        tokens = sum(len(sample.tokens) for sample in batch.samples)
        figures.samples += len(batch.samples)
        figures.tokens += tokens
        figures.lease_done += len(batch.samples)
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

    async def _submit_all(self, receiver: trio.MemoryReceiveChannel[tuple[Lease, list[Signed]]]) -> None:
        async with receiver:
            async for lease, results in receiver:
                batch = list(results)
                while len(batch) < SUBMIT_BATCH:
                    try:
                        lease, more = receiver.receive_nowait()
                    except (trio.WouldBlock, trio.EndOfChannel):
                        break
                    batch += more
                for start in range(0, len(batch), SUBMIT_BATCH):
                    await self._submit(batch[start : start + SUBMIT_BATCH], boottime() + lease.seconds)

    async def _submit(self, results: list[Signed], give_up: float) -> None:
        """Send until acknowledged or too late: a repeated submission is acknowledged, never counted twice."""
        message = Submit(tuple(results), self.figures.tokens_per_second or 0.0)
        while boottime() < give_up:
            try:
                reply = await self._link.submit(message, SUBMIT_SECONDS)
            except (UnreachableError, WireError):
                await trio.sleep(RETRY_SECONDS)
                continue
            if isinstance(reply, Receipts):
                self._note(reply)
                return
            if reply.reason is not Reason.NOT_A_MEMBER:
                self.figures.refused[reply.reason.value] += len(results)
                return
            await trio.sleep(RETRY_SECONDS)  # a host that started anew: the link joins again, the lease lives on
        self.figures.refused["unsent"] += len(results)

    def _note(self, reply: Receipts) -> None:
        for receipt in reply.receipts:
            if receipt.accepted:
                self.figures.admitted += 1
            else:
                self.figures.refused[receipt.reason] += 1

    async def _release(self, lease: Lease) -> None:
        """Give back what is left of a lease; its deadline does the same later if the host cannot be reached."""
        with trio.CancelScope(deadline=trio.current_time() + ASK_SECONDS, shield=True):
            try:
                await self._link.release(Release(lease.lease, lease.fencing))
            except AuroraError as error:
                self.figures.state = f"could not hand the lease back: {error}"
