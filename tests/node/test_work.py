"""The lease loop: commit, ask, generate, sign, submit; and every way in which a round ends early.

Weights and store are real; the host at the other end of the link and the engine do what they are told.
"""

import math

import pytest
import trio
import trio.testing
from msgspec import structs

from aurora_node.config import NodeConfig
from aurora_node.presence import Stance
from aurora_node.submitting import Finished
from aurora_node.work import LeaseWorker, WorkFigures
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import ChildError, DigestMismatch, StaleError, UnreachableError, WireError
from aurora_p2p.local.clock import boottime
from aurora_p2p.types import LeaseId, RunId, StateDigest, Step, Version
from aurora_p2p.wire.control import (
    Lease,
    LeaseRequest,
    LeaseSample,
    Reason,
    Receipt,
    Receipts,
    Refusal,
    Release,
    SampleResult,
    Sampling,
)
from aurora_p2p.wire.signed import open_signed
from tests.node.test_weights import Node as Following
from tests.node.test_weights import checkpoint_of
from tests.node.world import DEAD, Swarm, batch_of

ME = Identity(bytes(range(32)))
RUN = RunId(b"r" * 16)
PATIENCE_SECONDS = 20.0
settled = trio.testing.wait_all_tasks_blocked


class ScriptedHost:
    """What node's HostLink is: `answers` to lease requests and `replies` to results, taken in order; then silence."""

    def __init__(self):
        self.run = RUN
        self.answers, self.replies = [], []
        self.requests, self.submitted, self.released = [], [], []
        self.release_error = None

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


def test_a_lease_is_generated_signed_and_submitted_sample_by_sample(tmp_path):
    async def use(node):
        lease = node.lease(3)
        node.host.answers = [lease]
        node.engine.batches = [batch_of(lease, 2, 0), batch_of(lease, 1, done=True)]
        start(node)
        await until(lambda: len(node.host.submitted) == 3)
        assert [(one.sample, one.seed) for one in node.host.submitted] == [(2, 102), (0, 100), (1, 101)]
        [result, *_] = node.host.submitted
        assert (result.lease, result.fencing, result.run, result.target_step) == (lease.lease, 7, RUN, 1)
        assert (result.version, result.manifest_hash, result.digest) == (0, lease.manifest_hash, lease.digest)
        assert (result.audited, result.tokens, result.logprobs, result.finish) == (0, (5, 2), (-0.5, -0.5), "stop")
        figures = node.figures
        assert (figures.leases, figures.samples, figures.tokens, figures.admitted) == (1, 3, 6, 3)
        assert figures.tokens_per_second == 50.0
        assert node.host.released == []

    work(tmp_path, use)


def test_a_request_says_what_is_held_and_how_fast_the_node_is(tmp_path):
    async def use(node):
        lease = node.lease()
        node.host.answers = [lease]
        node.engine.batches = [batch_of(lease, 0, 1, done=True)]
        start(node)
        await until(lambda: len(node.host.requests) == 2)
        first, second = node.host.requests
        held = checkpoint_of(node.first)
        assert (first.run, first.version, first.manifest_hash, first.digest) == (RUN, 0, held.manifest, held.digest)
        assert (first.tokens_per_second, second.tokens_per_second) == (0.0, 50.0)

    work(tmp_path, use)


def test_newer_weights_are_committed_before_the_next_request_and_not_during_a_lease(tmp_path):
    async def use(node):
        lease, end, newer = node.lease(1), trio.Event(), node.swarm.delta(1, node.first)
        await node.announce(newer)
        node.host.answers = [lease]
        node.engine.batches = [end, batch_of(lease, 0, done=True)]
        start(node)
        await until(lambda: ("generate", 1) in node.engine.calls)
        await node.complete(newer)
        assert "commit" not in [call[0] for call in node.engine.calls]
        end.set()
        await until(lambda: len(node.host.requests) == 2)
        assert node.engine.calls[-1] == ("commit", 1, True)
        assert node.host.requests[1].version == 1

    work(tmp_path, use)


def test_an_engine_without_weights_asks_for_nothing(tmp_path):
    async def use(node):
        start(node)
        await until(lambda: node.figures.state == "waiting for the first weights")
        await trio.sleep(60)
        assert node.host.requests == []
        node.host.answers = [Refusal(Reason.NO_WORK)]
        await node.receive(node.first)
        await until(lambda: node.host.requests)

    work(tmp_path, use, loaded=False)


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(Reason.NO_WORK, "", 0.5),
        Refusal(Reason.DRAINING, "", 10.0),
        Refusal(Reason.NOT_A_MEMBER),
        Refusal(Reason.WRONG_RUN),
        Refusal(Reason.VERSION_TOO_OLD),
    ],
    ids=lambda refusal: refusal.reason.value,
)
def test_a_refused_node_waits_before_it_asks_again_but_never_long(refusal, tmp_path):
    async def use(node):
        node.host.answers = [refusal] * 10
        began = trio.current_time()
        start(node)
        await until(lambda: len(node.host.requests) == 11)
        waited = (trio.current_time() - began) / 10
        assert 0.4 <= waited <= 6.0
        assert node.figures.state in ("asking for work", f"idle: {refusal.reason.value.replace('_', ' ')}")

    work(tmp_path, use)


def test_a_refused_node_asks_at_once_when_newer_weights_are_there(tmp_path):
    async def use(node):
        newer = node.swarm.delta(1, node.first)
        await node.announce(newer)
        node.host.answers = [Refusal(Reason.VERSION_TOO_OLD)]
        start(node)
        await until(lambda: node.host.requests)
        await node.complete(newer)
        await until(lambda: len(node.host.requests) == 2)
        assert node.host.requests[1].version == 1
        assert node.weights.figures.waited_seconds > 0.0

    work(tmp_path, use)


@pytest.mark.parametrize("error", [UnreachableError("no answer"), StaleError("old HEAD"), WireError("nonsense")])
def test_a_host_that_cannot_be_believed_or_reached_is_asked_again(error, tmp_path):
    async def use(node):
        lease = node.lease(1)
        node.host.answers = [error, error, lease]
        node.engine.batches = [batch_of(lease, 0, done=True)]
        start(node)
        await until(lambda: node.host.submitted)

    work(tmp_path, use)


def test_at_the_deadline_generation_stops_and_the_rest_goes_back(tmp_path):
    async def use(node):
        lease = node.lease(3, seconds=0.2)
        node.host.answers = [lease]
        node.engine.batches = [batch_of(lease, 1), trio.Event(), batch_of(lease, 0, 2, done=True)]
        start(node)
        await until(lambda: node.host.released)
        assert node.host.released == [Release(lease.lease, lease.fencing)]
        assert node.engine.stopped == 1
        await until(lambda: node.host.submitted)
        assert [one.sample for one in node.host.submitted] == [1]
        await until(lambda: len(node.host.requests) == 2)  # and on it goes

    work(tmp_path, use)


def test_the_deadline_counts_from_before_the_request_was_sent(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("aurora_node.work.boottime", lambda: now[0])

    async def use(node):
        granted = trio.Event()
        lease = node.lease(2, seconds=30.0)
        node.host.answers = [granted, lease]
        node.engine.batches = [trio.Event()]
        start(node)
        await until(lambda: node.host.requests)
        now[0] += 31.0  # the answer took that long: the host has already given the samples to somebody else
        granted.set()
        began = trio.current_time()
        await until(lambda: node.host.released)
        assert trio.current_time() - began < 1.0

    work(tmp_path, use)


def test_a_drained_worker_hands_back_what_is_not_finished_sends_the_rest_and_ends(tmp_path):
    async def use(node):
        lease = node.lease(2)
        node.host.answers = [lease]
        node.engine.batches = [batch_of(lease, 0), trio.Event()]

        async def run():
            await node.worker.run(node.engine)
            ended.set()

        ended = trio.Event()
        node.nursery.start_soon(run)
        await until(lambda: node.figures.lease_done == 1)
        node.worker.drain()
        await ended.wait()
        assert node.worker.drained
        assert node.host.released == [Release(lease.lease, lease.fencing)]
        assert [one.sample for one in node.host.submitted] == [0]
        assert node.engine.stopped == 1

    work(tmp_path, use)


def test_a_lease_granted_while_the_worker_is_drained_goes_straight_back(tmp_path):
    async def use(node):
        granted = trio.Event()
        lease = node.lease(2)
        node.host.answers = [granted, lease]
        node.engine.batches = [trio.Event()]
        ended = trio.Event()

        async def run():
            await node.worker.run(node.engine)
            ended.set()

        node.nursery.start_soon(run)
        await until(lambda: node.host.requests)
        node.worker.drain()
        granted.set()
        with trio.fail_after(5):
            await ended.wait()
        assert node.host.released == [Release(lease.lease, lease.fencing)]
        assert node.host.submitted == []

    work(tmp_path, use)


def test_a_host_that_cannot_take_a_lease_back_does_not_stop_the_drain(tmp_path):
    async def use(node):
        lease = node.lease(1)
        node.host.answers, node.host.release_error = [lease], UnreachableError("gone")
        node.engine.batches = [trio.Event()]
        ended = trio.Event()

        async def run():
            await node.worker.run(node.engine)
            ended.set()

        node.nursery.start_soon(run)
        await until(lambda: ("generate", 1) in node.engine.calls)
        node.worker.drain()
        await ended.wait()
        assert node.figures.state == "could not hand the lease back: gone"

    work(tmp_path, use)


def test_results_are_sent_again_until_they_are_acknowledged(tmp_path):
    async def use(node):
        lease = node.lease(2)
        node.host.answers = [lease]
        node.host.replies = [UnreachableError("lost"), WireError("cut"), Refusal(Reason.NOT_A_MEMBER)]
        node.engine.batches = [batch_of(lease, 0, 1, done=True)]
        start(node)
        await until(lambda: node.figures.admitted == 2)
        assert [one.sample for one in node.host.submitted] == [0, 1]
        assert node.figures.refused == {}

    work(tmp_path, use)


def test_results_that_stay_unsent_past_their_lease_are_given_up_and_counted(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("aurora_node.submitting.boottime", lambda: now[0])

    async def use(node):
        lease = node.lease(2, seconds=30.0)
        node.host.answers = [lease]
        node.host.replies = [UnreachableError("gone")] * 1000
        node.engine.batches = [batch_of(lease, 0, 1, done=True)]
        start(node)
        await until(lambda: len(node.host.replies) < 995)
        now[0] += 31.0
        await until(lambda: node.figures.refused)
        assert node.figures.refused == {"unsent": 2}

    work(tmp_path, use)


def test_refused_results_are_counted_by_their_reason(tmp_path):
    async def use(node):
        lease = node.lease(4)
        node.host.answers = [lease]
        node.host.replies = [(1, 2), Refusal(Reason.MALFORMED)]
        receipted = trio.Event()
        node.engine.batches = [batch_of(lease, 0, 1, 2), receipted, batch_of(lease, 3, done=True)]
        start(node)
        await until(lambda: node.figures.refused["lag"] == 2)
        receipted.set()
        await until(lambda: node.figures.refused["malformed"])
        assert node.figures.refused == {"lag": 2, "malformed": 1}
        assert node.figures.admitted == 1

    work(tmp_path, use)


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (NodeConfig(max_context_tokens=10), {}),
        (NodeConfig(max_lease_seconds=60.0), {"seconds": 61.0}),
    ],
)
def test_a_lease_beyond_the_owners_limits_is_given_back_unworked(config, changes, tmp_path):
    async def use(node):
        lease = node.lease(2, **changes)
        node.host.answers = [lease]
        start(node)
        await until(lambda: node.figures.state.startswith("no lease"))
        assert "more than this owner allows" in node.figures.state
        assert node.host.released == [Release(lease.lease, lease.fencing)]
        assert ("generate", 2) not in node.engine.calls

    work(tmp_path, use, config=config)


@pytest.mark.parametrize(
    "changes",
    [{"version": Version(4)}, {"digest": StateDigest(bytes(32))}, {"lessee": Identity(bytes(32)).peer}],
)
def test_a_lease_for_something_or_somebody_else_is_not_worked_on(changes, tmp_path):
    async def use(node):
        node.host.answers = [node.lease(2, **changes)]
        start(node)
        await until(lambda: node.figures.state == "no lease: the lease is not for what this node holds")
        await until(lambda: len(node.host.requests) == 2)
        assert ("generate", 2) not in node.engine.calls

    work(tmp_path, use)


def test_a_lease_that_the_model_cannot_take_is_given_back_and_the_node_lives_on(tmp_path):
    async def use(node):
        lease = node.lease(2)
        node.host.answers = [lease]
        node.engine.batches = [WireError("token 99 is outside the vocabulary")]
        start(node)
        await until(lambda: len(node.host.requests) == 2)
        assert node.host.released == [Release(lease.lease, lease.fencing)]

    work(tmp_path, use)


@pytest.mark.parametrize("error", [DEAD, DigestMismatch("wrong weights")])
def test_an_engine_that_died_or_lies_ends_the_worker_for_its_owner_to_replace(error, tmp_path):
    async def use(node):
        node.host.answers = [node.lease(2)]
        if isinstance(error, ChildError):
            node.engine.batches = [error]
        else:
            await node.receive(node.swarm.delta(1, node.first))
            node.engine.fail["commit"] = error
        with pytest.raises(type(error)) as raised:
            await node.worker.run(node.engine)
        assert raised.value is error
        assert node.engine.stopped == isinstance(error, ChildError)

    work(tmp_path, use)


def test_a_node_whose_publisher_contradicted_itself_takes_no_lease_until_told_otherwise(tmp_path):
    async def use(node):
        node.worker.stand_still(True)
        start(node)
        await until(lambda: node.figures.state.startswith("standing still"))
        await trio.sleep(60)
        assert node.host.requests == []
        node.worker.stand_still(False)
        await until(lambda: node.host.requests)

    work(tmp_path, use)


def test_results_waiting_together_travel_together_at_most_as_many_as_one_message_holds(tmp_path):
    async def use(node):
        lease, held = node.lease(150), trio.Event()
        node.host.answers = [lease]
        sizes = []
        submit = node.host.submit

        async def slow(message, seconds):
            sizes.append(len(message.results))
            await held.wait()
            return await submit(message, seconds)

        node.host.submit = slow
        node.engine.batches = [batch_of(lease, index, done=index == 149) for index in range(150)]
        start(node)
        await until(lambda: node.figures.lease_done >= 60)
        held.set()
        await until(lambda: node.figures.admitted == 150)
        assert max(sizes) == 64
        assert len(sizes) < 75
        assert [one.sample for one in node.host.submitted] == list(range(150))

    work(tmp_path, use)


# ---- paused, drained, asked to leave


PAUSED = Stance("owner", "paused by the owner", hand_back=True)


def test_a_paused_worker_hands_its_lease_back_sends_what_is_finished_and_asks_for_no_other(tmp_path):
    async def use(node):
        lease = node.lease(3)
        node.host.answers = [lease]
        node.engine.batches = [batch_of(lease, 0), trio.Event()]
        start(node)
        await until(lambda: node.figures.lease_done == 1)
        node.worker.stand(PAUSED)
        await until(lambda: node.figures.state == "paused: paused by the owner")
        assert node.host.released == [Release(lease.lease, lease.fencing)]
        await trio.sleep(600)
        assert [one.sample for one in node.host.submitted] == [0]
        assert len(node.host.requests) == 1
        node.worker.stand(Stance())
        with trio.fail_after(0.5):  # not at the next look
            await until(lambda: len(node.host.requests) == 2)

    work(tmp_path, use)


def test_when_the_hours_are_over_the_lease_in_hand_is_finished_and_none_is_asked_for(tmp_path):
    async def use(node):
        lease, end = node.lease(2), trio.Event()
        node.host.answers = [lease]
        node.engine.batches = [batch_of(lease, 0), end, batch_of(lease, 1, done=True)]
        start(node)
        await until(lambda: node.figures.lease_done == 1)
        node.worker.stand(Stance("hours", "outside the hours", until="22:00"))
        await trio.sleep(30)
        end.set()
        await until(lambda: node.figures.admitted == 2)
        await trio.sleep(600)
        assert node.host.released == []
        assert len(node.host.requests) == 1

    work(tmp_path, use)


def test_a_lease_granted_while_the_worker_is_paused_goes_straight_back(tmp_path):
    async def use(node):
        granted, lease = trio.Event(), node.lease(2)
        node.host.answers = [granted, lease]
        node.engine.batches = [trio.Event()]
        start(node)
        await until(lambda: node.host.requests)
        node.worker.stand(PAUSED)
        granted.set()
        await until(lambda: node.host.released)
        assert node.host.submitted == []

    work(tmp_path, use)


def test_a_paused_worker_stays_current(tmp_path):
    async def use(node):
        newer = node.swarm.delta(1, node.first)
        node.worker.stand(PAUSED)
        start(node)
        await until(lambda: node.figures.state.startswith("paused"))
        await node.receive(newer)
        await until(lambda: node.weights.held == checkpoint_of(newer))
        assert node.weights.figures.waited_seconds == 0.0, "nobody waited: the owner had paused"

    work(tmp_path, use)


def test_a_disk_short_of_room_is_no_reason_to_take_no_lease(tmp_path):
    async def use(node):
        node.worker.stand(Stance("disk", "fetching waits", fetching=False))
        start(node)
        await until(lambda: node.host.requests)

    work(tmp_path, use)


@pytest.mark.parametrize("idle", ["refused", "paused", "no weights"])
def test_an_idle_worker_drains_at_once(idle, tmp_path):
    async def use(node):
        node.host.answers = [Refusal(Reason.VERSION_TOO_OLD)]
        if idle == "paused":
            node.worker.stand(PAUSED)
        ended = trio.Event()

        async def run():
            await node.worker.run(node.engine)
            ended.set()

        node.nursery.start_soon(run)
        await until(lambda: node.figures.state.startswith(("idle", "paused", "waiting")))
        began = trio.current_time()
        node.worker.drain()
        await ended.wait()
        assert trio.current_time() == began

    work(tmp_path, use, loaded=idle != "no weights")


def test_a_worker_whose_engine_is_wanted_back_leaves_it_and_can_take_another(tmp_path):
    async def use(node):
        lease = node.lease(2)
        node.host.answers = [lease]
        node.engine.batches = [batch_of(lease, 0), trio.Event()]
        left = trio.Event()

        async def run():
            await node.worker.run(node.engine)
            left.set()

        node.nursery.start_soon(run)
        await until(lambda: node.figures.lease_done == 1)
        node.worker.leave()
        await left.wait()
        assert not node.worker.drained
        assert node.host.released == [Release(lease.lease, lease.fencing)]
        await until(lambda: node.host.submitted)  # without an engine
        start(node)
        await until(lambda: len(node.host.requests) == 2)

    work(tmp_path, use)


def test_finished_samples_outlive_the_engine_that_made_them(tmp_path):
    async def use(node):
        lease = node.lease(2)
        node.host.answers = [lease]
        node.host.replies = [UnreachableError("a moment")]
        node.engine.batches = [batch_of(lease, 0), DEAD]
        with pytest.raises(ChildError):
            await node.worker.run(node.engine)
        await node.worker.submissions.wait_until_sent()
        assert [one.sample for one in node.host.submitted] == [0]

    work(tmp_path, use)


# ---- the log


def test_the_log_has_each_lease_its_end_and_what_was_receipted(tmp_path):
    async def use(node):
        lease = node.lease(3)
        node.host.answers = [lease]
        node.host.replies = [(1,)]
        node.engine.batches = [batch_of(lease, 0, 1, 2, done=True)]
        start(node)
        await until(lambda: node.figures.admitted == 2)
        name = lease.lease.hex()
        [taken], [ended], [receipts] = (node.noted(name) for name in ("lease", "lease-ended", "receipts"))
        assert (taken["lease"], taken["step"], taken["version"], taken["samples"]) == (name, 1, 0, 3)
        assert (ended["lease"], ended["how"], ended["done"], ended["size"]) == (name, "finished", 3, 3)
        assert receipts == {"lease": name, "step": 1, "accepted": [[0, 0], [0, 2]], "refused": {"lag": 1}}

    work(tmp_path, use)


def test_receipts_are_logged_by_lease_when_results_of_two_travel_together(tmp_path):
    async def use(node):
        one, two, held = node.lease(1), node.lease(1, lease=LeaseId(b"m" * 16)), trio.Event()
        submit = node.host.submit

        async def slow(message, seconds):
            await held.wait()
            return await submit(message, seconds)

        node.host.submit = slow
        submissions = node.worker.submissions
        signed = [node.worker._sign(lease, batch_of(lease, 0), batch_of(lease, 0).samples[0]) for lease in (one, two)]
        await submissions.put([Finished(one, signed[0]), Finished(two, signed[1])])
        held.set()
        await submissions.wait_until_sent()
        assert [(fields["lease"], fields["accepted"]) for fields in node.noted("receipts")] == [
            (one.lease.hex(), [[0, 0]]),
            (two.lease.hex(), [[0, 0]]),
        ]

    work(tmp_path, use)


def test_a_refusal_is_logged_once_not_at_every_question(tmp_path):
    async def use(node):
        node.host.answers = [Refusal(Reason.NO_WORK)] * 3 + [Refusal(Reason.DRAINING, "a\x1b[2J")]
        start(node)
        await until(lambda: len(node.host.requests) == 5)
        refusals = node.noted("lease-refused")
        assert [fields["reason"] for fields in refusals] == ["no_work", "draining"]
        assert refusals[1]["detail"] == "a?[2J"

    work(tmp_path, use)
