"""Nodes of different and changing speed work off steps in virtual time: who gets what, and when all are done."""

import heapq
import itertools
from collections import Counter, defaultdict

import pytest

from aurora_p2p.lease.events import Ended
from aurora_p2p.wire.control import Lease, Reason, Refusal
from aurora_p2p.wire.trainer import Rollouts
from tests.lease.world import NODES, World, finish

A, B, C, D = NODES
TOKENS = 3  # of a sample (world.finish)
STEP = 40, 8


class Race:
    """Each node works on one lease at a time, sends each sample when it is done, and asks again."""

    def __init__(self, world, speeds):
        """speeds: node -> tokens/s at a time; 0 means that it is dead."""
        self.world, self.speeds = world, speeds
        self.due, self.order = [], itertools.count()
        self.admitted = Counter()
        self.refused = Counter()
        self.leases = defaultdict(list)
        self.ended = []

    def later(self, seconds, act, *arguments):
        heapq.heappush(self.due, (self.world.now + seconds, next(self.order), act, arguments))

    def run(self, step, prompts, group):
        """Publish version `step`, submit its prompts; returns the seconds until it is complete."""
        self.world.publish(step)
        self.world.submit_prompts(step, prompts, group)
        started, self.due = self.world.now, []
        for node in self.speeds:
            self.later(0.0, self.ask, node, step)
        while not isinstance(self.world.take(step), Rollouts):
            self.world.now, _, act, arguments = heapq.heappop(self.due)
            assert self.world.now - started < 1000, "the step never ends"
            act(*arguments)
        return self.world.now - started

    def ask(self, node, step):
        if self.speeds[node](self.world.now) <= 0:
            return
        lease = self.world.ask(node, step, samples=256, speed=self.speeds[node](self.world.now))
        self.ended += [effect for effect in self.world.effects if isinstance(effect, Ended)]
        if isinstance(lease, Refusal):
            self.later(lease.retry_seconds, self.ask, node, step)
        else:
            self.leases[node.peer].append(lease)
            self.work(node, lease, 0)

    def work(self, node, lease, index):
        if index == len(lease.samples):
            self.ask(node, lease.target_step)
        elif (speed := self.speeds[node](self.world.now)) > 0:
            self.later(TOKENS / speed, self.done, node, lease, index)

    def done(self, node, lease, index):
        if self.speeds[node](self.world.now) <= 0:
            return
        (receipt,) = self.world.send(node.peer, finish(node, lease, lease.samples[index]))
        if receipt.accepted:
            self.admitted[node.peer] += 1
            self.work(node, lease, index + 1)
        else:
            self.refused[receipt.reason] += 1
            self.ask(node, lease.target_step)


def always(speed):
    return lambda now: speed


def test_the_parts_of_two_nodes_are_as_their_speeds():
    race = Race(World(), {A: always(50.0), B: always(25.0)})
    race.run(0, 4, 8)
    race.admitted.clear()
    assert race.run(1, 25, 12) == pytest.approx(300 * TOKENS / 75.0, rel=0.05)
    assert race.admitted[A.peer] == pytest.approx(200, abs=3)
    assert sum(race.admitted.values()) == 300


@pytest.mark.parametrize("change", [3.0, 1 / 3])
def test_a_node_that_becomes_three_times_as_fast_or_slow_gets_its_new_part(change):
    world = World()
    turn = world.now + 8.0
    race = Race(world, {A: lambda now: 50.0 * (change if now > turn else 1.0), B: always(50.0)})
    race.run(0, 4, 8)
    work, before = 3 * 8 * 40 * TOKENS, (turn - world.now) * 100
    ideal = turn - world.now + (work - before) / (50 + 50 * change)
    assert race.run(1, 120, 8) <= 1.1 * ideal


def test_a_node_that_dies_in_a_lease_holds_nobody_up_until_its_deadline():
    """Its lease ends 10 s after it was granted; the idle node takes it back as soon as it is clear that it is late."""
    world = World()
    death = world.now + 6.0
    race = Race(world, {A: always(50.0), B: lambda now: 50.0 if now < death else 0.0, C: always(50.0)})
    race.run(0, 4, 8)
    before = (death - world.now) * 150
    ideal = death - world.now + (40 * 8 * TOKENS - before) / 100
    assert race.run(1, *STEP) <= 1.15 * ideal
    assert [(ended.peer, ended.reason) for ended in race.ended] == [(B.peer, Reason.FENCED)]
    (dead,) = [node for node in world.pool.status(now=world.now).nodes if node.peer == B.peer]
    assert dead.withheld == race.ended[0].samples


def test_who_is_late_is_told_that_its_samples_went_to_another_node():
    world = World()
    turn = world.now + 6.0
    race = Race(world, {A: always(50.0), B: lambda now: 50.0 if now < turn else 0.5, C: always(50.0)})
    race.run(0, 4, 8)
    race.run(1, *STEP)
    lease = next(one for one in race.leases[B.peer] if one.lease == race.ended[0].lease)
    (receipt,) = world.send(B.peer, finish(B, lease, lease.samples[-1]))
    assert (receipt.accepted, receipt.reason) == (False, Reason.FENCED)


def test_no_lease_is_taken_back_while_everybody_is_on_time():
    race = Race(World(), {A: always(50.0), B: always(10.0), C: always(30.0)})
    for step in range(4):
        race.run(step, *STEP)
    assert race.ended == []
    assert not race.refused


def test_all_nodes_end_a_step_together():
    race = Race(World(), {A: always(60.0), B: always(40.0), C: always(30.0), D: always(20.0)})
    race.run(0, *STEP)
    assert race.run(1, *STEP) <= 1.05 * STEP[0] * STEP[1] * TOKENS / 150


def test_a_swarm_of_one_gets_all_of_every_group():
    race = Race(World(), {A: always(50.0)})
    assert race.run(0, 4, 8) == pytest.approx(32 * TOKENS / 50)


def test_no_group_comes_from_one_of_several_nodes():
    world = World()
    race = Race(world, {A: always(90.0), B: always(10.0), C: always(1.0)})
    for step in range(3):
        race.run(step, 16, 4)
        owners = defaultdict(set)
        for sample in world.take(step).samples:
            owners[sample.prompt].add(sample.node)
        assert all(len(nodes) > 1 for nodes in owners.values())


def test_nobody_is_given_more_than_is_left_for_it():
    """Of the last samples each node gets what it will have done when the others are, not a whole lease."""
    world = World()
    race = Race(world, {A: always(300.0), B: always(300.0)})
    race.run(0, *STEP)
    world.publish(1)
    world.submit_prompts(1, 2, 5)
    assert isinstance(first := world.ask(A, 1, samples=256, speed=300.0), Lease)
    assert isinstance(second := world.ask(B, 1, samples=256, speed=300.0), Lease)
    assert (len(first.samples), len(second.samples)) == (5, 5)


def test_a_large_swarm_is_shared_out_in_the_same_way(monkeypatch):
    monkeypatch.setattr("aurora_p2p.lease.split.CROWD", 3)
    race = Race(World(), {A: always(60.0), B: always(40.0), C: always(30.0), D: always(20.0)})
    race.run(0, *STEP)
    assert race.run(1, *STEP) <= 1.1 * STEP[0] * STEP[1] * TOKENS / 150
