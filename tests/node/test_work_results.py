"""What becomes of results: sent until acknowledged, counted by reason, and logged."""

import pytest
import trio
import trio.testing

from aurora_node.submitting import Finished
from aurora_p2p.errors import ChildError, UnreachableError, WireError
from aurora_p2p.types import LeaseId
from aurora_p2p.wire.control import (
    Reason,
    Refusal,
)
from tests.node.work_world import start, until, work
from tests.node.world import DEAD, batch_of


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
