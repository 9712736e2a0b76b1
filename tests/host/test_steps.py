"""Finished steps as the host counts them, and the trainer's share of waiting."""

import pytest
import trio
import trio.testing

from aurora_p2p.host.steps import KEPT_STEPS, StepHistory
from aurora_p2p.local.control import socket_path
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.types import Step
from aurora_p2p.wire.trainer import Rollout, Rollouts, StepDone
from tests.host.world import NODES, open_host
from tests.lease.world import SAMPLING


def done(step, reward=0.5):
    return StepDone(Step(step), reward, 1.0, 2.0, 0.5)


def rollouts(step, tokens=120, seconds=4.0):
    sample = Rollout(0, 0, 0, NODES[0].peer, (1,), (-0.5,), "length")
    return Rollouts(Step(step), (sample,), seconds, tokens)


def test_the_first_step_has_no_duration_and_the_second_counts_from_it():
    history = StepHistory()
    assert history.done(done(0), now=10.0).seconds == 0.0
    entry = history.done(done(1), now=14.0)
    assert (entry.seconds, entry.wait_share, entry.reward) == (4.0, 0.0, 0.5)


def test_the_wait_share_is_the_time_in_waits_over_the_time_between_two_steps():
    history = StepHistory()
    history.done(done(0), now=10.0)
    history.waiting_began(Step(1), now=11.0)
    history.waiting_ended(Step(1), now=13.0)
    assert history.done(done(1), now=18.0).wait_share == 0.25
    assert history.done(done(2), now=20.0).wait_share == 0.0


def test_trainers_that_wait_at_the_same_time_are_counted_once():
    history = StepHistory()
    history.done(done(0), now=0.0)
    history.waiting_began(Step(1), now=0.0)
    history.waiting_began(Step(2), now=1.0)
    assert history.waits_for == 1
    history.waiting_ended(Step(1), now=3.0)
    assert (history.waits_for, history.waiting_seconds(4.0)) == (2, 3.0)
    history.waiting_ended(Step(2), now=4.0)
    assert (history.waits_for, history.waiting_seconds(9.0)) == (None, 0.0)
    assert history.done(done(1), now=8.0).wait_share == 0.5


def test_a_wait_across_a_step_counts_for_both_and_never_more_than_all():
    history = StepHistory()
    history.done(done(0), now=0.0)
    history.waiting_began(Step(2), now=1.0)
    assert history.done(done(1), now=2.0).wait_share == 0.5
    assert history.done(done(2), now=3.0).wait_share == 1.0
    assert history.waiting_seconds(3.0) == 2.0


def test_a_step_shows_the_speed_of_the_rollouts_that_were_taken_for_it():
    history = StepHistory()
    history.took(rollouts(1))
    entry = history.done(done(1), now=1.0)
    assert (entry.samples, entry.tokens, entry.tokens_per_second) == (1, 120, 30.0)
    assert history.done(done(2), now=2.0).tokens_per_second == 0.0


def test_history_is_bounded():
    history = StepHistory()
    for step in range(KEPT_STEPS + 10):
        history.took(rollouts(step + 5000))
        history.done(done(step), now=float(step))
    assert len(history.entries) == KEPT_STEPS
    assert history.entries[0].step == 10
    assert len(history._taken) == KEPT_STEPS


def test_a_trainer_reports_its_step_over_the_socket_and_the_status_shows_it(tmp_path):
    seen = []

    def talk():
        with SwarmClient.open(tmp_path) as client:
            seconds = {"waited_seconds": 0.5, "trained_seconds": 2.0, "published_seconds": 0.25}
            client.step_done(Step(0), 0.75, **seconds)
            for unknown in (float("nan"), float("-inf"), 1e300):
                client.step_done(Step(1), unknown, **seconds)

    async def main():
        async with open_host(tmp_path) as host, trio.open_nursery() as nursery:
            host.door.on_step = lambda entry: seen.append((entry.step, entry.reward))
            nursery.start_soon(host.door.serve, socket_path(tmp_path, "trainer"))
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(talk)
            await trio.testing.wait_all_tasks_blocked()
            status = host.status()
            assert [(step["step"], step["reward"], step["trained_seconds"]) for step in status["history"]] == [
                (0, 0.75, 2.0),
                *[(1, None, 2.0)] * 3,
            ]
            assert (status["trainer"]["last_step"], status["trainer"]["connections"]) == (1, 0)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert seen == [(0, 0.75), *[(1, None)] * 3]


@pytest.mark.parametrize("gone", [False, True])
def test_a_trainer_that_polls_is_seen_waiting_until_it_is_gone_or_turns_to_something_else(tmp_path, gone):
    def wait_then_leave(host):
        with SwarmClient.open(tmp_path) as client:
            client.submit(Step(0), [(1, 2)], 1, SAMPLING)
            polls = []

            def on_wait(waiting):
                polls.append(waiting.why)
                if len(polls) == 2:
                    raise KeyboardInterrupt

            from aurora_p2p.train import client as module

            module.POLL_SECONDS, before = 0.01, module.POLL_SECONDS
            try:
                with pytest.raises(KeyboardInterrupt):
                    client.rollouts(Step(0), on_wait)
            finally:
                module.POLL_SECONDS = before
            assert trio.from_thread.run_sync(lambda: host.door.steps.waits_for) == 0
            assert polls[0] == "told by the host"
            if not gone:
                client.attach()
                assert trio.from_thread.run_sync(lambda: host.door.steps.waits_for) is None

    async def main():
        async with open_host(tmp_path) as host, trio.open_nursery() as nursery:
            host.door.explain = lambda waiting: "told by the host"
            await host.publish(0)
            nursery.start_soon(host.door.serve, socket_path(tmp_path, "trainer"))
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(wait_then_leave, host)
            with trio.fail_after(30):
                while host.door.steps.connections:
                    await trio.lowlevel.checkpoint()
            assert host.door.steps.waits_for is None
            nursery.cancel_scope.cancel()

    trio.run(main)
