"""What a trainer is handed of a step: complete groups, and how much was admitted of the others."""

import itertools

import pytest

from aurora_p2p.train.client import length_bias
from aurora_p2p.wire.trainer import Rollouts, TakeRollouts, Waiting
from tests.lease.world import NODES, World, finish

A = NODES[0]
SHORT, LONG = (5, 2), (5, 6, 7, 2)


@pytest.fixture
def world():
    world = World()
    world.publish(0)
    world.submit_prompts(0, 3, 2)
    return world


def admit(world, texts):
    """Lease the whole step to one node and finish these samples of it: (prompt, sample) -> tokens."""
    lease = world.ask(A, samples=6)
    assert len(lease.samples) == 6
    results = [
        finish(A, lease, one, tokens=text, logprobs=(-1.0,) * len(text))
        for one in lease.samples
        if (text := texts.get((one.prompt, one.sample)))
    ]
    assert all(receipt.accepted for receipt in world.send(A.peer, *results))


def test_a_step_with_short_groups_is_waited_for(world):
    admit(world, {(0, 0): SHORT, (0, 1): SHORT, (1, 0): LONG})
    assert isinstance(world.take(0), Waiting)


def test_short_groups_can_be_dropped_and_are_counted(world):
    admit(world, {(0, 0): SHORT, (0, 1): SHORT, (1, 0): LONG})
    rollouts = world.handle(TakeRollouts(0, 0.0, "drop"))
    assert isinstance(rollouts, Rollouts)
    assert [(one.prompt, one.sample) for one in rollouts.samples] == [(0, 0), (0, 1)]
    assert (rollouts.tokens, rollouts.short_groups, rollouts.short_samples, rollouts.short_tokens) == (4, 2, 1, 4)


def test_without_any_complete_group_there_is_nothing_to_hand_out(world):
    admit(world, {(0, 0): SHORT, (1, 0): LONG})
    assert isinstance(world.handle(TakeRollouts(0, 0.0, "drop")), Waiting)


def test_a_complete_step_has_no_short_groups(world):
    admit(world, dict.fromkeys(itertools.product(range(3), range(2)), LONG))
    assert world.handle(TakeRollouts(0, 0.0, "drop")) == world.take(0)
    assert world.take(0).short_groups == 0
    assert length_bias(world.take(0)) == 1.0


def test_the_length_bias_says_how_much_shorter_the_samples_are_than_all_that_were_admitted(world):
    admit(world, {(0, 0): SHORT, (0, 1): SHORT, (1, 0): LONG})
    assert length_bias(world.handle(TakeRollouts(0, 0.0, "drop"))) == pytest.approx(2 / (8 / 3))


def test_dropped_groups_end_with_their_step(world):
    admit(world, {(0, 0): SHORT, (0, 1): SHORT})
    world.handle(TakeRollouts(0, 0.0, "drop"))
    world.publish(1)
    assert not world.pool.book.live
