"""Room on disk for what a node wants: reserved before anything is accepted, and waited for."""

import trio
import trio.testing

from tests.node.weights_world import checkpoint_of, run

settled = trio.testing.wait_all_tasks_blocked


def test_disk_is_reserved_before_an_artifact_is_accepted_and_each_is_accepted_once(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.announce(first, first)
        await node.announce(swarm.delta(1, first))
        assert node.accepted == [one.artifact for one in swarm.published]
        assert all(node.store.body_path(artifact).exists() for artifact in node.accepted)

    run(tmp_path, use)


def test_without_room_nothing_is_accepted_and_the_owner_is_told(tmp_path):
    async def use(node, swarm):
        await node.announce(swarm.snapshot(0))
        assert node.accepted == []
        assert "does not fit" in node.weights.problem

    run(tmp_path, use, quota_bytes=1000)


def test_what_has_no_room_is_accepted_as_soon_as_there_is_room_without_a_new_announcement(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        node.lacking = "0.1 GiB of disk are free"
        await node.announce(first)
        for _ in range(3):
            await node.weights.accept_wanted()
        assert (node.accepted, node.weights.problem) == ([], "0.1 GiB of disk are free")
        assert [fields["why"] for name, fields in node.notes if name == "no-room"] == ["0.1 GiB of disk are free"]
        node.lacking = ""
        await node.weights.accept_wanted()
        assert (node.accepted, node.weights.problem) == ([first.artifact], "")
        await node.complete(first)
        assert node.weights.held == checkpoint_of(first)

    run(tmp_path, use)


def test_quota_that_is_given_back_is_used_without_a_new_announcement(tmp_path):
    async def use(node, swarm):
        old, new = swarm.snapshot(0), swarm.snapshot(1)
        await node.announce(old)
        await node.announce(new)
        assert "does not fit" in node.weights.problem
        node.weights.forget(old.artifact)
        node.store.retire(old.artifact)
        await node.weights.accept_wanted()
        assert node.accepted == [old.artifact, new.artifact]
        assert node.weights.problem == ""

    run(tmp_path, use, quota_bytes=(1 << 20) + 1000)


def test_a_want_of_room_ends_with_what_had_none(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        node.lacking = "no memory"
        await node.announce(first)
        node.weights.forget(first.artifact)
        assert node.weights.problem == ""

    run(tmp_path, use)


def test_an_artifact_forgotten_while_room_is_made_leaves_nothing_on_disk(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        create = node.store.create

        def aborted_meanwhile(header):
            create(header)
            trio.from_thread.run_sync(node.weights.forget, first.artifact)

        node.store.create = aborted_meanwhile
        await node.announce(first)
        assert (node.accepted, node.store.reserved_bytes) == ([], 0)

    run(tmp_path, use)


def test_an_artifact_is_accepted_once_also_when_two_look_for_room_at_a_time(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.announce, first)
            nursery.start_soon(node.weights.accept_wanted)
            nursery.start_soon(node.announce, first)
        assert node.accepted == [first.artifact]

    run(tmp_path, use)


def test_a_short_quota_gives_up_what_only_others_may_need(tmp_path):
    async def use(node, swarm):
        retired = []

        async def note(artifact):
            retired.append(artifact)

        node.weights.retired = note
        old = swarm.snapshot(0)
        await node.receive(old)
        new = swarm.snapshot(3)
        await node.receive(new)
        await node.announce(swarm.delta(4, new))
        assert retired == [old.artifact]
        assert (node.weights.problem, len(node.accepted)) == ("", 3)

    run(tmp_path, use, quota_bytes=(1 << 20) + 1000)
