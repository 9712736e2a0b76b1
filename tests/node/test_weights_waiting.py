"""What waiting for newer weights, their transfer and their commit cost a node, as its figures say it."""

import pytest
import trio
import trio.testing

from aurora_p2p.types import Version
from tests.node.weights_world import run
from tests.node.world import ScriptedEngine

settled = trio.testing.wait_all_tasks_blocked


@pytest.fixture
def clock(monkeypatch):
    """The boot clock of weights.py, set by hand."""
    now = [1000.0]
    monkeypatch.setattr("aurora_node.weights.boottime", lambda: now[0])
    return now


def test_whoever_waits_for_newer_weights_wakes_when_they_are_staged_or_the_time_is_up(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.receive(first)
        await node.weights.wait_for_newer(Version(-1), 600)  # there already
        await node.weights.wait_for_newer(Version(0), 0.0)
        woken = []

        async def wait():
            await node.weights.wait_for_newer(Version(0), 600)
            woken.append(node.weights.newest)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await settled()
            assert woken == []
            await node.receive(swarm.delta(1, first))
        assert woken == [1]

    run(tmp_path, use)


# ---- figures


def test_transfer_time_is_from_hearing_of_an_artifact_to_its_last_byte(tmp_path, clock):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.announce(first)
        clock[0] += 7.0
        swarm.receive(first)
        await node.weights.completed(first.artifact)
        clock[0] += 5.0
        await node.weights.completed(first.artifact)  # told twice: counted once
        assert node.weights.figures.transfer_seconds == 7.0

    run(tmp_path, use)


def test_waiting_is_idle_time_while_newer_weights_were_on_their_way(tmp_path, clock):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.receive(first)
        node.weights.idle()
        clock[0] += 10.0  # idle for want of prompts: nothing is under way
        second = swarm.delta(1, first)
        await node.announce(second)
        clock[0] += 3.0
        node.weights.idle()  # refused again: still the same idleness
        swarm.receive(second)
        await node.weights.completed(second.artifact)
        await settled()
        await node.weights.commit_ready()
        clock[0] += 2.0  # committed, but no lease yet: not the weights' fault
        node.weights.busy()
        assert node.weights.figures.waited_seconds == 3.0

    run(tmp_path, use)


def test_a_transfer_behind_a_running_generation_is_not_waited_for(tmp_path, clock):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.receive(first)
        node.weights.busy()
        second = swarm.delta(1, first)
        await node.announce(second)
        clock[0] += 4.0
        swarm.receive(second)
        await node.weights.completed(second.artifact)
        await settled()
        await node.weights.commit_ready()
        node.weights.busy()
        assert node.weights.figures.waited_seconds == 0.0
        assert node.weights.figures.transfer_seconds == 4.0

    run(tmp_path, use)


def test_waiting_counts_also_when_old_work_turns_up_before_the_new_weights(tmp_path, clock):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.receive(first)
        second = swarm.delta(1, first)
        await node.announce(second)
        clock[0] += 1.0
        node.weights.idle()
        clock[0] += 6.0
        node.weights.busy()  # a lease another node gave back
        clock[0] += 6.0
        assert node.weights.figures.waited_seconds == 6.0

    run(tmp_path, use)


def test_a_pause_is_from_the_last_token_of_one_version_to_the_first_of_the_next(tmp_path):
    async def use(node, swarm):
        weights = node.weights
        weights.tokens_at(1.0, 2.0, Version(0))
        weights.tokens_at(2.5, 3.0, Version(0))  # the same version: a pause of the swarm's work, not of a commit
        weights.tokens_at(3.25, 4.0, Version(1))
        weights.tokens_at(4.5, 5.0, Version(3))
        assert weights.figures.pauses == [0.25, 0.5]
        weights.attach(ScriptedEngine())
        weights.tokens_at(60.0, 61.0, Version(4))  # a new engine: loading is no commit
        assert weights.figures.pauses == [0.25, 0.5]

    run(tmp_path, use)


def test_pauses_are_remembered_up_to_a_bound(tmp_path):
    async def use(node, swarm):
        for version in range(2000):
            node.weights.tokens_at(version + 0.5, version + 1.0, Version(version))
        assert 100 < len(node.weights.figures.pauses) < 1000

    run(tmp_path, use)
