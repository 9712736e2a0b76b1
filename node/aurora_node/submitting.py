"""Finished samples on their way to the host: sent until acknowledged, or too late.

    queued --Submit--> RECEIPTED (counted, noted)      --deadline of the lease--> unsent, counted

The queue outlives engines: one that dies, or is ended to free its memory, takes no finished sample along. A repeated
submission is acknowledged and never counted twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from aurora_p2p.errors import UnreachableError, WireError
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import reach
from aurora_p2p.local.output import clean
from aurora_p2p.wire.control import Lease, Reason, Receipt, Receipts, Refusal, Submit
from aurora_p2p.wire.signed import Signed

SUBMIT_SECONDS = 20.0
SUBMIT_BATCH = 64
"""Results in one Submit (its wire limit)."""
UNSENT_BATCHES = 64
"""Generated batches that wait for the network before generating pauses: minutes of work."""
RETRY_SECONDS = 1.0
LOST: frozenset[str] = frozenset({Reason.LEASE_EXPIRED, Reason.LEASE_UNKNOWN, Reason.FENCED, Reason.TOO_LATE})
"""Refusals that whatever else comes under the lease would get as well."""


class Receiver(Protocol):
    """The part of HostLink that takes results."""

    async def submit(self, results: Submit, seconds: float) -> Receipts | Refusal: ...


class Tally(Protocol):
    """The part of the node's figures that submissions count in. `refused` also counts what was never sent."""

    admitted: int
    refused: Counter[str]
    tokens_per_second: float | None


@dataclass(frozen=True, slots=True)
class Finished:
    """One signed result of a lease."""

    lease: Lease
    signed: Signed


class Submissions:
    """Run one `run`; `put` from the lease loop. note: Output.note, told of every receipt."""

    def __init__(self, host: Receiver, figures: Tally, note: Callable[..., None]) -> None:
        self._host, self._figures, self._note = host, figures, note
        self._sender, self._receiver = trio.open_memory_channel[Sequence[Finished]](UNSENT_BATCHES)
        self.on_lost: Callable[[Lease], None] = lambda lease: None
        """Told that a lease is over for the host."""
        self._open = 0
        self._settled = trio.Event()

    async def put(self, results: Sequence[Finished]) -> None:
        """Queue results; waits while the queue is full."""
        self._open += len(results)
        try:
            await self._sender.send(results)
        except trio.Cancelled:  # while the queue was full
            self._open -= len(results)
            raise

    async def wait_until_sent(self) -> None:
        """Until each result that was queued is receipted or given up."""
        while self._open:
            self._settled = trio.Event()
            await self._settled.wait()

    async def run(self) -> None:
        """Send until cancelled: whatever has gathered while the last batch was under way goes into the next."""
        async for first in self._receiver:
            gathered = list(first)
            while len(gathered) < SUBMIT_BATCH:
                try:
                    gathered += self._receiver.receive_nowait()
                except trio.WouldBlock:
                    break
            for start in range(0, len(gathered), SUBMIT_BATCH):
                batch = gathered[start : start + SUBMIT_BATCH]
                await self._submit(batch, boottime() + max(one.lease.seconds for one in batch))
                self._open -= len(batch)
                self._settled.set()

    async def _submit(self, batch: Sequence[Finished], give_up: float) -> None:
        message = Submit(tuple(one.signed for one in batch), self._figures.tokens_per_second or 0.0)
        while boottime() < give_up:
            try:
                reach("results.submitting")
                reply = await self._host.submit(message, SUBMIT_SECONDS)
            except (UnreachableError, WireError):
                await trio.sleep(RETRY_SECONDS)
                continue
            reach("results.answered")
            if isinstance(reply, Receipts):
                self._receipted(batch, reply.receipts)
                return
            if reply.reason is not Reason.NOT_A_MEMBER:
                self._refused(batch, reply.reason.value)
                return
            await trio.sleep(RETRY_SECONDS)  # a host that started anew: the link joins again, the lease lives on
        self._refused(batch, "unsent")

    def _refused(self, batch: Sequence[Finished], reason: str) -> None:
        self._figures.refused[reason] += len(batch)
        for lease in _leases(batch):
            count = sum(one.lease is lease for one in batch)
            self._note(
                "receipts", lease=lease.lease.hex(), step=lease.target_step, accepted=[], refused={reason: count}
            )

    def _receipted(self, batch: Sequence[Finished], receipts: Sequence[Receipt]) -> None:
        for lease in _leases(batch):
            mine = [receipt for one, receipt in zip(batch, receipts, strict=False) if one.lease is lease]
            accepted = [[receipt.prompt, receipt.sample] for receipt in mine if receipt.accepted]
            refused = Counter(receipt.reason for receipt in mine if not receipt.accepted)
            self._figures.admitted += len(accepted)
            self._figures.refused.update(refused)
            if not LOST.isdisjoint(refused):
                self.on_lost(lease)
            self._note(
                "receipts",
                lease=lease.lease.hex(),
                step=lease.target_step,
                accepted=accepted,
                refused={clean(reason, 64): count for reason, count in refused.items()},
            )


def _leases(batch: Sequence[Finished]) -> list[Lease]:
    """Each lease of a batch once. By identity: comparing leases would compare all of their prompts."""
    return list({id(one.lease): one.lease for one in batch}.values())
