"""A node at work with real weights and a real store; its host and its engine do what they are told."""

import math

import trio
import trio.testing
from msgspec import structs

from aurora_node.config import NodeConfig
from aurora_node.presence import Stance
from aurora_node.work import LeaseWorker, WorkFigures
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.local.clock import boottime
from aurora_p2p.types import LeaseId, RunId, Step
from aurora_p2p.wire.control import (
    Lease,
    LeaseRequest,
    LeaseSample,
    Receipt,
    Receipts,
    Refusal,
    SampleResult,
    Sampling,
)
from aurora_p2p.wire.signed import open_signed
from tests.node.weights_world import Node as Following
from tests.node.weights_world import checkpoint_of
from tests.node.world import Swarm

ME = Identity(bytes(range(32)))
RUN = RunId(b"r" * 16)
PATIENCE_SECONDS = 20.0
settled = trio.testing.wait_all_tasks_blocked
PAUSED = Stance("owner", "paused by the owner", hand_back=True)


class ScriptedHost:
    """What node's HostLink is: `answers` to lease requests and `replies` to results, taken in order; then silence."""

    def __init__(self):
        self.run = RUN
        self.answers, self.replies = [], []
        self.requests, self.submitted, self.released = [], [], []
        self.release_error = None
        self.renewals, self.renewed = [], []

    def new_nonce(self):
        return bytes(32)

    async def ask_lease(self, request, seconds):
        assert seconds < math.inf
        self.requests.append(open_signed(request.request, LeaseRequest, {ME.peer}))
        await trio.lowlevel.checkpoint()
        if not self.answers:
            await trio.sleep_forever()
        answer = self.answers.pop(0)
        if isinstance(answer, trio.Event):
            await answer.wait()
            answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def open_lease(self, grant):
        return grant

    async def submit(self, message, seconds):
        assert seconds < math.inf
        await trio.lowlevel.checkpoint()
        reply = self.replies.pop(0) if self.replies else None
        if isinstance(reply, Exception):
            raise reply
        results = [open_signed(signed, SampleResult, {ME.peer}) for signed in message.results]
        if isinstance(reply, Refusal):
            return reply
        self.submitted += results
        refused = reply or ()
        return Receipts(
            tuple(
                Receipt(one.prompt, one.sample, one.sample not in refused, "lag" if one.sample in refused else "")
                for one in results
            )
        )

    async def renew(self, renew, seconds):
        assert seconds < math.inf
        self.renewed.append(renew)
        await trio.lowlevel.checkpoint()
        answer = self.renewals.pop(0) if self.renewals else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def release(self, release):
        await trio.lowlevel.checkpoint()
        if self.release_error is not None:
            raise self.release_error
        self.released.append(release)


class Node(Following):
    """A node that holds version 0, with its worker."""

    def __init__(self, store, swarm, config):
        super().__init__(store, swarm, 16)
        self.host, self.figures = ScriptedHost(), WorkFigures()
        self.notes = []
        self.worker = LeaseWorker(ME, config, self.host, self.weights, self.figures, self._note)
        self.first = swarm.snapshot(0)

    def _note(self, name, **fields):
        self.notes.append((name, fields))

    def noted(self, name):
        return [fields for noted, fields in self.notes if noted == name]

    def lease(self, count=2, *, seconds=600.0, **changes):
        held = checkpoint_of(self.first)
        lease = Lease(
            lease=LeaseId(b"l" * 16),
            lessee=ME.peer,
            run=RUN,
            target_step=Step(1),
            version=held.version,
            manifest_hash=held.manifest,
            digest=held.digest,
            fencing=7,
            seconds=seconds,
            sampling=Sampling(1.0, 8, 64, (2,)),
            prompts=((3, 4, 5),),
            samples=tuple(LeaseSample(0, index, 100 + index, 0) for index in range(count)),
        )
        return structs.replace(lease, **changes)


def work(tmp_path, use, *, config=None, loaded=True):
    """`use(node)` with the worker running; time that only waits is skipped."""

    async def main():
        with ArtifactStore(tmp_path / "artifacts", 1 << 26) as store:
            node = Node(store, Swarm(store, tmp_path / "spool"), config or NodeConfig())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.weights.run, node.engine)
                nursery.start_soon(node.worker.submissions.run)
                if loaded:
                    await node.receive(node.first)
                node.nursery = nursery
                await use(node)
                nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def until(condition):
    """Poll in skipped time. What never comes true fails within seconds of real time, and not by a hung test."""
    give_up = boottime() + PATIENCE_SECONDS
    while not condition():
        assert boottime() < give_up
        await trio.sleep(0.02)


def start(node):
    node.nursery.start_soon(node.worker.run, node.engine)
