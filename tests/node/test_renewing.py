"""A lease that its node asks to keep, and one that the host has taken back."""

import pytest
import trio

from aurora_node.config import NodeConfig
from aurora_p2p.errors import UnreachableError
from aurora_p2p.wire.control import Receipt, Receipts, Release, Renew
from tests.node.work_world import start, until, work
from tests.node.world import batch_of


@pytest.fixture(autouse=True)
def one_clock(monkeypatch):
    """Deadlines are of the clock that is skipped."""
    for module in ("renewing", "work"):
        monkeypatch.setattr(f"aurora_node.{module}.boottime", trio.current_time)


def test_a_lease_that_is_done_in_time_is_not_renewed(tmp_path):
    async def use(node):
        lease = node.lease(1)
        node.host.answers = [lease]
        node.engine.batches = [batch_of(lease, 0, done=True)]
        start(node)
        await until(lambda: node.host.submitted)
        assert node.host.renewed == []

    work(tmp_path, use)


def test_a_host_that_does_not_answer_is_asked_to_renew_again(tmp_path):
    async def use(node):
        lease = node.lease(1, seconds=30.0)
        node.host.answers, node.host.renewals = [lease], [UnreachableError("no answer"), 600.0]
        node.engine.batches = [trio.Event()]
        start(node)
        await until(lambda: len(node.host.renewed) == 2)

    work(tmp_path, use)


def test_a_renewal_moves_the_deadline(tmp_path):
    async def use(node):
        lease, end = node.lease(1, seconds=0.3), trio.Event()
        node.host.answers, node.host.renewals = [lease], [600.0]
        node.engine.batches = [end, batch_of(lease, 0, done=True)]
        start(node)
        await until(lambda: node.host.renewed)
        assert node.host.renewed == [Renew(lease.lease, lease.fencing)]
        await trio.sleep(1.0)
        assert node.host.released == []
        end.set()
        await until(lambda: node.host.submitted)

    work(tmp_path, use, config=NodeConfig(max_lease_seconds=3600.0))


def test_without_a_renewal_the_deadline_stays(tmp_path):
    async def use(node):
        lease = node.lease(1, seconds=0.3)
        node.host.answers = [lease]
        node.engine.batches = [trio.Event()]
        start(node)
        await until(lambda: node.host.released)
        assert node.host.renewed == [Renew(lease.lease, lease.fencing)]

    work(tmp_path, use)


def test_no_lease_is_kept_longer_than_its_owner_allows(tmp_path):
    async def use(node):
        lease = node.lease(1, seconds=0.3)
        node.host.answers, node.host.renewals = [lease], [600.0]
        node.engine.batches = [trio.Event()]
        start(node)
        await until(lambda: node.host.released)
        assert node.host.renewed == []

    work(tmp_path, use, config=NodeConfig(max_lease_seconds=0.4))


def test_work_on_a_lease_that_was_taken_back_is_aborted(tmp_path):
    async def use(node):
        lease = node.lease(3)

        async def submit(message, seconds):
            return Receipts((Receipt(0, 1, accepted=False, reason="fenced"),))

        node.host.submit = submit
        node.host.answers = [lease]
        node.engine.batches = [batch_of(lease, 1), trio.Event(), batch_of(lease, 0, 2, done=True)]
        start(node)
        await until(lambda: node.host.released)
        assert node.host.released == [Release(lease.lease, lease.fencing)]
        assert node.engine.stopped == 1
        assert node.figures.refused == {"fenced": 1}
        await until(lambda: len(node.host.requests) == 2)

    work(tmp_path, use)
