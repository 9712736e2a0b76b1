"""The lease loop: commit, ask, generate, sign, submit; and every way in which a round ends early."""

import pytest
import trio
import trio.testing

from aurora_node.config import NodeConfig
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import ChildError, DigestMismatch, StaleError, UnreachableError, WireError
from aurora_p2p.types import StateDigest, Version
from aurora_p2p.wire.control import (
    Reason,
    Refusal,
    Release,
)
from tests.node.weights_world import checkpoint_of
from tests.node.work_world import RUN, start, until, work
from tests.node.world import DEAD, batch_of


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
