"""The owner's commands: pause, resume, quit, why; and what nodes are told meanwhile."""

import pytest
import trio
import trio.testing

from aurora_p2p.host.config import DRAIN_SECONDS
from aurora_p2p.host.controls import Controls
from aurora_p2p.local.output import Output
from aurora_p2p.wire.control import Grant, Lease, LeaseRequest, Reason, Receipts, SignedLeaseRequest, Submit
from aurora_p2p.wire.signed import open_signed, seal
from tests.host.world import KEYS, NODES, events_of, join_of, open_host
from tests.lease.world import finish, prompts_of

NODE = NODES[0]


def serve(tmp_path, use, *, prompts=2):
    """Run `use(host, commands, ask)`: a host with version 0 published, one member, and a step open."""

    async def main():
        async with open_host(tmp_path) as host:
            await host.publish(0)
            await host.pool_door.handle(prompts_of(0, prompts, 2))
            host.members.join(NODE.peer, join_of(NODE), now=0.0)
            controls = Controls(
                host.answers,
                host.pool_door,
                host.driver,
                Output(as_json=True),
                lambda: host.status() | {"paused": host.answers.paused},
            )

            async def ask():
                newest = host.desk.newest
                request = LeaseRequest(
                    bytes(32), host.ledger.run, newest.version, newest.manifest_hash, newest.digest, 0.0, 1
                )
                return await host.answers.answer(NODE.peer, SignedLeaseRequest(seal(NODE, request)))

            await use(host, controls, ask)

    trio.run(main)


def test_while_paused_leases_are_refused_by_name_and_results_are_taken(tmp_path, capsys):
    async def use(host, controls, ask):
        commands = controls.commands()
        grant = await ask()
        assert isinstance(grant, Grant)
        said = await commands["pause"]({})
        assert (said["paused"], "aurora-host resume" in said["text"]) == (True, True)
        refusal = await ask()
        assert (refusal.reason, refusal.retry_seconds > 0) == (Reason.PAUSED, True)
        lease = open_signed(grant.lease, Lease, {KEYS.lease.peer})
        receipts = await host.answers.answer(NODE.peer, Submit((finish(NODE, lease, lease.samples[0]),), 0.0))
        assert isinstance(receipts, Receipts)
        assert receipts.receipts[0].accepted
        await commands["pause"]({})
        await commands["resume"]({})
        assert isinstance(await ask(), Grant)
        assert not host.answers.paused

    serve(tmp_path, use)
    assert [event["event"] for event in events_of(capsys)] == ["paused", "resumed"]


def test_a_pause_reaches_a_node_that_is_waiting_for_work(tmp_path):
    async def use(host, controls, ask):
        assert [type(await ask()) for _ in range(2)] == [Grant, Grant]
        answers = []

        async def wait():
            answers.append(await ask())

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                await controls.commands()["pause"]({})
        assert answers[0].reason is Reason.PAUSED

    serve(tmp_path, use, prompts=1)


def test_without_live_leases_quit_ends_the_host_at_once(tmp_path):
    async def use(host, controls, ask):
        said = await controls.commands()["quit"]({})
        assert (said["draining"], said["leases"]) == (False, 0)
        with trio.fail_after(30):
            await controls.wait_until_drained()
        assert (await ask()).reason is Reason.DRAINING

    serve(tmp_path, use)


def test_quit_waits_for_live_leases_and_ends_when_the_last_one_does(tmp_path, capsys):
    async def use(host, controls, ask):
        grant = await ask()
        drained = trio.Event()

        async def wait():
            await controls.wait_until_drained()
            drained.set()

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                said = await controls.commands()["quit"]({})
                assert (said["draining"], said["leases"], said["seconds"]) == (True, 1, DRAIN_SECONDS)
                await trio.testing.wait_all_tasks_blocked()
                assert not drained.is_set()
                assert (await ask()).reason is Reason.DRAINING
                lease = open_signed(grant.lease, Lease, {KEYS.lease.peer})
                results = tuple(finish(NODE, lease, sample) for sample in lease.samples)
                await host.answers.answer(NODE.peer, Submit(results, 0.0))
                await drained.wait()

    serve(tmp_path, use)
    assert [event["event"] for event in events_of(capsys)] == ["draining"]


@pytest.mark.parametrize("second", [{}, {"now": True}])
def test_a_second_quit_waits_for_nothing(tmp_path, second):
    async def use(host, controls, ask):
        await ask()
        commands = controls.commands()
        assert (await commands["quit"]({}))["draining"]
        said = await commands["quit"](second)
        assert (said["draining"], said["text"]) == (False, "stopping")
        with trio.fail_after(30):
            await controls.wait_until_drained()
        assert host.pool.book.live

    serve(tmp_path, use)


def test_why_and_caps_answer_for_scripts(tmp_path):
    async def use(host, controls, ask):
        commands = controls.commands()
        assert await commands["caps"]({"up_kib": 5.0}) == {"up_kib": 5.0, "down_kib": 0.0}
        await commands["pause"]({})
        assert (await commands["why"]({}))["why"][0].startswith("paused by the owner")
        assert set(commands) == {"status", "why", "caps", "pause", "resume", "quit"}
        assert (await commands["status"]({}))["version"] == 0

    serve(tmp_path, use)
