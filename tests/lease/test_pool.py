import math
from collections import defaultdict

import pytest

from aurora_p2p.errors import UsageError
from aurora_p2p.lease.events import Completed, Ended, Forget, From
from aurora_p2p.lease.fleet import LeaseOptions
from aurora_p2p.wire.codec import decode
from aurora_p2p.wire.control import (
    Lease,
    Noted,
    Reason,
    Refusal,
    Release,
    Released,
    Renew,
    Renewed,
    SampleResult,
    Submit,
)
from aurora_p2p.wire.signed import Signed, seal
from aurora_p2p.wire.trainer import Failed, Rollouts, Waiting
from tests.lease.world import NODES, SAMPLING, World, digest_of, finish, manifest_of, prompts_of

A, B, C, _ = NODES


@pytest.fixture
def world():
    world = World()
    world.publish(0)
    return world


def slots(lease):
    return [(sample.prompt, sample.sample) for sample in lease.samples]


def work_until_nobody_gets_any(world, nodes, *, samples=8, seconds=0.1):
    """Every node asks in turn and finishes what it gets; returns who drew each sample."""
    drawn = {}
    while True:
        idle = 0
        for node in nodes:
            lease = world.ask(node, samples=samples)
            if isinstance(lease, Refusal):
                idle += 1
                continue
            world.work_off(node, lease, seconds=seconds)
            drawn |= dict.fromkeys(slots(lease), node.peer)
        if idle == len(nodes):
            return drawn


def test_a_swarm_of_one_works_off_a_step_and_the_trainer_takes_it_in_order(world):
    assert world.submit_prompts(0, 3, 4) == Noted()
    assert isinstance(world.take(0), Waiting)
    lease = world.ask(A, samples=12)
    while isinstance(lease, Lease):
        world.work_off(A, lease, seconds=0.5)
        completed = Completed(0) in world.effects
        lease = world.ask(A, samples=12)
    assert completed
    rollouts = world.take(0)
    assert isinstance(rollouts, Rollouts)
    assert [(sample.prompt, sample.sample) for sample in rollouts.samples] == [
        (p, s) for p in range(3) for s in range(4)
    ]
    assert rollouts.tokens == 36
    assert world.take(0) == rollouts


def test_a_lease_carries_each_prompt_once_and_everything_the_engine_needs(world):
    world.submit_prompts(0, 4, 4)
    lease = world.ask(A)
    assert (lease.version, lease.manifest_hash, lease.digest) == (0, manifest_of(0), digest_of(0))
    assert lease.sampling == SAMPLING
    assert len(lease.prompts) == len({sample.prompt for sample in lease.samples})
    for sample in lease.samples:
        assert lease.prompts[sample.prompt_index] == (3, 0, sample.prompt)
        assert 0 <= sample.seed < 2**63


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        (Reason.WRONG_RUN, {"run": b"x" * 16}),
        (Reason.VERSION_UNKNOWN, {"version": 6}),
        (Reason.VERSION_TOO_OLD, {"version": 3}),
        (Reason.WRONG_DIGEST, {"digest": digest_of(4)}),
        (Reason.WRONG_MANIFEST, {"manifest_hash": manifest_of(4)}),
    ],
)
def test_weights_that_may_not_work_are_refused_by_name(world, reason, changes):
    world.publish(5)
    world.submit_prompts(5, 1, 1)
    assert world.ask(A, 5, **changes).reason is reason


def test_a_snapshot_of_a_version_counts_as_that_version(world):
    record = world.ledger[-1]
    world.handle(type(record)(record.version, manifest_of(99), record.digest))
    world.submit_prompts(0, 4, 4)
    assert isinstance(world.ask(A, manifest_hash=manifest_of(99)), Lease)
    assert isinstance(world.ask(B), Lease)


def test_a_version_works_on_its_own_step_and_the_next_but_not_the_one_after(world):
    for step in (0, 1, 2):
        world.submit_prompts(step, 1, 4)
    granted = []
    while isinstance(lease := world.ask(A), Lease):
        granted.append(lease.target_step)
        world.work_off(A, lease)
    assert sorted(set(granted)) == [0, 1]


def test_with_lag_zero_only_the_own_step_is_worked_on():
    world = World(max_lag=0)
    world.publish(0)
    world.submit_prompts(1, 1, 4)
    assert world.ask(A).reason is Reason.NO_WORK


def test_a_missed_deadline_returns_the_samples_and_the_late_result_is_refused(world):
    world.submit_prompts(0, 1, 4)
    lease = world.ask(A)
    assert world.pool.next_deadline() == world.now + lease.seconds
    world.now += lease.seconds
    again = world.ask(B)
    assert Ended(lease.lease, A.peer, Reason.LEASE_EXPIRED, len(lease.samples)) in world.effects
    assert set(slots(again)) <= set(slots(lease))
    assert again.fencing > lease.fencing
    (receipt,) = world.send(A.peer, finish(A, lease, lease.samples[0]))
    assert (receipt.accepted, receipt.reason) == (False, Reason.LEASE_EXPIRED)


def test_a_sample_issued_again_has_the_same_seed_and_another_version_another(world):
    world.submit_prompts(1, 1, 1)
    first = world.ask(A)
    world.now += first.seconds
    assert world.ask(B).samples == first.samples
    world.now += 1000
    world.publish(1)
    assert world.ask(A, 1).samples[0].seed != first.samples[0].seed


def test_what_a_dead_node_sent_before_it_died_is_kept(world):
    world.submit_prompts(0, 2, 4)
    lease = world.ask(A)
    world.send(A.peer, finish(A, lease, lease.samples[0]))
    world.wait(lease.seconds)
    assert slots(lease)[0] not in slots(world.ask(B))
    status = world.pool.status(now=world.now)
    assert [(node.admitted, node.withheld) for node in status.nodes if node.peer == A.peer] == [
        (1, len(lease.samples) - 1)
    ]


def test_a_lost_acknowledgement_is_repeated_and_nothing_counts_twice(world):
    world.submit_prompts(0, 1, 2)
    lease = world.ask(A)
    signed = finish(A, lease, lease.samples[0])
    for _ in range(3):
        (receipt,) = world.send(A.peer, signed)
        assert receipt.accepted
    (other,) = world.send(A.peer, finish(A, lease, lease.samples[0], tokens=(9, 9, 2)))
    assert (other.accepted, other.reason) == (False, Reason.DUPLICATE)
    assert world.take(0).admitted == 1


def test_a_resubmission_is_acknowledged_after_a_restart_and_after_the_step_was_consumed(world):
    world.submit_prompts(0, 1, 1)
    lease = world.ask(A)
    signed = finish(A, lease, lease.samples[0])
    world.send(A.peer, signed)
    world.publish(1)
    world.restart()
    (receipt,) = world.send(A.peer, signed)
    assert receipt.accepted


def test_publishing_a_version_ends_the_leases_of_the_steps_it_consumed(world):
    world.submit_prompts(0, 1, 2)
    lease = world.ask(A)
    world.publish(1)
    assert [effect.reason for effect in world.effects if isinstance(effect, Ended)] == [Reason.TOO_LATE]
    (receipt,) = world.send(A.peer, finish(A, lease, lease.samples[0]))
    assert receipt.reason == Reason.TOO_LATE
    assert isinstance(world.take(0), Failed)
    world.publish(2)
    assert world.pool.status(now=world.now).steps == ()


def test_a_released_lease_returns_what_was_not_sent(world):
    world.submit_prompts(0, 2, 4)
    lease = world.ask(A)
    world.send(A.peer, finish(A, lease, lease.samples[0]))
    assert world.handle(From(B.peer, Release(lease.lease, lease.fencing))).reason is Reason.NOT_THE_LESSEE
    assert world.handle(From(A.peer, Release(lease.lease, lease.fencing + 1))).reason is Reason.FENCED
    assert world.handle(From(A.peer, Release(lease.lease, lease.fencing))) == Released(len(lease.samples) - 1)
    assert world.handle(From(A.peer, Release(lease.lease, lease.fencing))).reason is Reason.LEASE_SPENT
    assert world.pool.status(now=world.now).steps[0].leased == 0


def test_a_renewed_lease_has_its_whole_time_again(world):
    world.submit_prompts(0, 1, 4)
    lease = world.ask(A)
    world.wait(lease.seconds - 1)
    assert world.handle(From(A.peer, Renew(lease.lease, lease.fencing))) == Renewed(lease.seconds)
    assert world.pool.next_deadline() == world.now + lease.seconds
    world.wait(lease.seconds - 1)
    assert all(receipt.accepted for receipt in world.send(A.peer, *(finish(A, lease, one) for one in lease.samples)))


def test_a_lease_is_renewed_for_its_lessee_only_and_only_while_it_lives(world):
    world.submit_prompts(0, 1, 4)
    lease = world.ask(A)
    assert world.handle(From(B.peer, Renew(lease.lease, lease.fencing))).reason is Reason.NOT_THE_LESSEE
    assert world.handle(From(A.peer, Renew(lease.lease, lease.fencing + 1))).reason is Reason.FENCED
    world.now += lease.seconds
    assert world.handle(From(A.peer, Renew(lease.lease, lease.fencing))).reason is Reason.LEASE_EXPIRED


def test_a_lease_without_a_new_sample_is_renewed_a_few_times_only(world):
    world.submit_prompts(0, 1, 4)
    lease = world.ask(A)
    renew = From(A.peer, Renew(lease.lease, lease.fencing))
    for _ in range(world.options.max_renewals):
        assert isinstance(world.handle(renew), Renewed)
    assert world.handle(renew).reason is Reason.NOT_RENEWED
    world.send(A.peer, finish(A, lease, lease.samples[0]))
    assert isinstance(world.handle(renew), Renewed)


def test_a_forgotten_peer_holds_nothing(world):
    world.submit_prompts(0, 1, 4)
    world.ask(A)
    world.handle(Forget(A.peer))
    assert world.pool.next_deadline() == math.inf
    assert world.pool.status(now=world.now).steps[0].open == 4


def test_bytes_that_are_no_result_get_a_receipt_and_change_nothing(world):
    world.submit_prompts(0, 1, 1)
    (receipt,) = world.send(A.peer, Signed(A.peer, b"\xff\x00", bytes(64)))
    assert receipt.reason == Reason.MALFORMED
    assert world.pool.status(now=world.now).refused == {"malformed": 1}


def test_receipts_come_in_the_order_of_the_results(world):
    world.submit_prompts(0, 2, 4)
    lease = world.ask(A)
    good = [finish(A, lease, sample) for sample in lease.samples[:3]]
    bad = finish(A, lease, lease.samples[3], seed=1)
    receipts = world.handle(From(A.peer, Submit((good[0], bad, good[1], good[2]), 0.0))).receipts
    assert [receipt.accepted for receipt in receipts] == [True, False, True, True]


def test_two_nodes_never_let_one_draw_a_whole_group(world):
    world.submit_prompts(0, 1, 1)
    for node in (A, B):
        world.ask(node)
    world.publish(1)
    world.submit_prompts(1, 16, 4)
    for node in (A, B):
        node_lease = world.ask(node, 1)
        world.work_off(node, node_lease, seconds=0.01 if node is A else 1.0)
    owners = defaultdict(set)
    for _ in range(60):
        for node in (A, A, A, B):
            lease = world.ask(node, 1)
            if isinstance(lease, Lease):
                world.work_off(node, lease, seconds=0.01)
            world.now += 0.2
    for sample in world.take(1).samples:
        owners[sample.prompt].add(sample.node)
    assert all(len(nodes) == 2 for nodes in owners.values())


def test_leftovers_of_a_node_that_went_away_are_finished_by_the_other(world):
    world.submit_prompts(0, 8, 8)
    for node in (A, B):
        world.work_off(node, world.ask(node), seconds=0.05)
    while isinstance(lease := world.ask(A), Lease):
        world.work_off(A, lease, seconds=0.01)
    assert lease.reason is Reason.NO_WORK  # B is expected back: the last sample of each group is kept for it
    assert world.pool.status(now=world.now).steps[0].open == 6
    world.now += world.options.active_seconds + world.options.max_lease_seconds
    work_until_nobody_gets_any(world, [A])
    assert isinstance(world.take(0), Rollouts)


def test_two_nodes_that_keep_asking_never_wait_for_each_other(world):
    world.submit_prompts(0, 5, 3)
    drawn = work_until_nobody_gets_any(world, [A, B], samples=2, seconds=0.0)
    world.now += world.options.tail_seconds
    drawn |= work_until_nobody_gets_any(world, [A, B], samples=2, seconds=0.0)
    assert len(drawn) == 15


def test_a_node_is_not_given_more_than_it_can_finish():
    world = World(max_lease_seconds=60.0)
    world.publish(0)
    world.submit_prompts(0, 100, 8)
    world.work_off(A, world.ask(A), seconds=8.0)  # 24 tokens
    held = 0
    while isinstance(lease := world.ask(A, samples=256, speed=1e6), Lease):
        held += len(lease.samples)
    assert lease.reason is Reason.NO_WORK
    assert held * SAMPLING.max_tokens / 3.0 == 60.0


@pytest.mark.parametrize(("prompts", "samples"), [(101, 100), (201, 200), (401, 256)])
def test_a_fast_node_gets_a_second_of_work_or_an_eighth_of_what_is_left_and_a_short_lease(world, prompts, samples):
    world.submit_prompts(0, prompts, 8)
    world.work_off(A, world.ask(A, samples=256), seconds=0.1)
    lease = world.ask(A, samples=256, speed=300.0)  # 3 tokens each
    assert len(lease.samples) == samples
    assert world.options.min_lease_seconds <= lease.seconds < 13


def test_a_node_whose_speed_decayed_to_nothing_can_recover(world):
    world.submit_prompts(0, 8, 8)
    world.work_off(B, world.ask(B), seconds=0.1)
    for _ in range(3):
        world.wait(world.ask(A).seconds)
    assert world.pool.fleet.node(A.peer).rate == 0.0
    world.ask(B)
    lease = world.ask(A)
    world.work_off(A, lease, seconds=0.1)
    assert world.pool.fleet.node(A.peer).rate > 0


def test_a_restart_keeps_leases_samples_and_steps_and_fences_higher(world):
    world.submit_prompts(0, 4, 4)
    lease = world.ask(A)
    world.send(A.peer, finish(A, lease, lease.samples[0]))
    world.now += lease.seconds - 1
    world.restart()
    assert world.pool.next_deadline() == world.now + lease.seconds
    assert world.take(0).admitted == 1
    assert world.ask(B).fencing > lease.fencing
    world.now += lease.seconds - 1
    assert all(r.accepted for r in world.send(A.peer, *(finish(A, lease, sample) for sample in lease.samples)))


def test_a_restart_with_a_smaller_lag_window_is_refused(world):
    world.submit_prompts(1, 1, 1)
    lease = world.ask(A)
    world.send(A.peer, finish(A, lease, lease.samples[0]))
    world.options = LeaseOptions(max_lag=0)
    with pytest.raises(UsageError, match="outside max_lag 0"):
        world.restart()


def test_the_same_prompts_again_are_noted_and_others_are_refused(world):
    assert world.submit_prompts(0, 2, 2) == Noted()
    before = len(world.ledger)
    assert world.submit_prompts(0, 2, 2) == Noted()
    assert len(world.ledger) == before
    assert isinstance(world.submit_prompts(0, 3, 2), Failed)


def test_prompts_that_no_node_could_work_on_are_refused(world):
    world.publish(3)
    assert "consumed" in world.submit_prompts(2, 1, 1).detail
    assert "vocabulary" in world.handle(prompts_of(3, 100, 1).__class__(3, ((99,),), 1, SAMPLING)).detail
    assert "samples" in world.handle(prompts_of(3, 2000, 1024)).detail
    assert "never submitted" in world.take(3).detail


def test_a_waiting_trainer_is_told_which_version_is_missing():
    world = World()
    world.submit_prompts(5, 1, 2)
    assert world.take(5).why == "version 4, the oldest that may work on it: none is published"
    world.publish(0)
    assert world.take(5).why == "version 4, the oldest that may work on it: 0 is published"


def test_a_waiting_trainer_is_told_who_has_the_samples_and_until_when(world):
    world.submit_prompts(0, 1, 6)
    assert world.take(0).why == "6 of 6 samples: 6 open (no node asks for work)"
    lease = world.ask(A, samples=2)
    assert world.take(0).why == "6 of 6 samples: 2 leased to 1 node (next deadline in 10 s), 4 open"
    world.send(A.peer, finish(A, lease, lease.samples[0]))
    world.now += 3.0
    assert world.take(0).why == "5 of 6 samples: 1 leased to 1 node (next deadline in 7 s), 4 open"


def test_a_waiting_trainer_is_told_when_every_node_is_too_far_behind(world):
    world.ask(A)
    world.publish(1)
    world.publish(2)
    world.submit_prompts(2, 1, 2)
    assert world.take(2).why == "2 of 2 samples: 2 open (the one active node holds version 0)"
    world.ask(B, 1)
    assert world.take(2).why == "2 of 2 samples: 2 leased to 1 node (next deadline in 10 s)"


def test_a_status_names_live_leases_nearest_deadline_first_and_refusals_of_each_node(world):
    world.submit_prompts(0, 2, 4)
    first = world.ask(A, samples=2)
    world.now += 1.0
    second = world.ask(B, samples=2)
    world.send(A.peer, finish(A, first, first.samples[0], seed=1))
    status = world.pool.status(now=world.now)
    assert [(lease.lease, lease.peer, lease.samples) for lease in status.leases] == [
        (first.lease.hex(), A.peer, 2),
        (second.lease.hex(), B.peer, 2),
    ]
    assert [lease.seconds_left for lease in status.leases] == [first.seconds - 1.0, second.seconds]
    assert {node.peer: node.reasons for node in status.nodes} == {A.peer: {"wrong_seed": 1}, B.peer: {}}
    assert status.live_leases == 2


def test_another_nodes_result_is_refused_at_the_cost_of_who_hands_it_in(world):
    world.submit_prompts(0, 1, 2)
    lease = world.ask(A, samples=1)
    signed = finish(A, lease, lease.samples[0])
    copy = seal(B, decode(signed.body, SampleResult))
    for _ in range(2):  # before the original came, and after it was admitted
        for theft in (signed, copy, Signed(A.peer, copy.body, copy.signature)):
            (receipt,) = world.send(B.peer, theft)
            assert (receipt.accepted, receipt.reason) == (False, Reason.NOT_THE_LESSEE)
        (receipt,) = world.send(A.peer, signed)
        assert receipt.accepted
    nodes = world.pool.fleet.nodes
    assert nodes[B.peer].refused == {Reason.NOT_THE_LESSEE: 6}
    assert (nodes[A.peer].admitted, nodes[A.peer].refused.total()) == (1, 0)
