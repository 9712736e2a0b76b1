"""A worker that is drained, paused or out of its hours: what it finishes, hands back and still sends."""

import pytest
import trio
import trio.testing

from aurora_node.presence import Stance
from aurora_p2p.errors import UnreachableError
from aurora_p2p.wire.control import (
    Reason,
    Refusal,
    Release,
)
from tests.node.weights_world import checkpoint_of
from tests.node.work_world import PAUSED, start, until, work
from tests.node.world import batch_of


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
