"""What breaks one after the other while training goes on: nodes, their children, the host, the bootstrap."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from aurora_p2p.host.programs import Program, wait_until
from aurora_p2p.local.clock import boottime
from aurora_p2p.train.loop import StepRecord
from tests.e2e.chaos import half_published, holds, survived
from tests.e2e.world import (
    BULK,
    ENGINE,
    GROUP,
    LEASE_SECONDS,
    LONG,
    PROMPTS,
    SLOW,
    Swarm,
    child_of,
    grown,
)

pytestmark = pytest.mark.slow

SOON = LEASE_SECONDS / 2
"""Well before any lease's deadline: the shortest lasts 10 s."""


@pytest.fixture(autouse=True)
def all_survive(swarm: Swarm) -> Iterator[None]:
    """Around each: nothing stuck, lost or doubled."""
    swarm.mend()
    with survived(swarm):
        yield


def admitted_once(swarm: Swarm, records: list[StepRecord]) -> None:
    """Each step got all of its samples, none of them twice, none too old."""
    for record in records:
        assert swarm.in_ledger(record.step) == PROMPTS * GROUP
        assert record.tokens == PROMPTS * GROUP * SLOW.max_tokens
        assert record.max_lag <= 1


def withheld(swarm: Swarm, peer: str) -> int:
    """Samples that a peer leased and let expire."""
    return sum(node["withheld"] for node in swarm.host.status()["work"]["nodes"] if node["peer"] == peer)


def test_sigterm_hands_the_leases_of_a_node_back_at_once_and_the_others_complete_its_step(swarm: Swarm) -> None:
    leaver = swarm.nodes[-1]
    (status,) = swarm.settle(leaver)
    peer, kept = status["peer"], withheld(swarm, status["peer"])
    with swarm.training(1) as step:
        swarm.wait_for_lease(peer)
        asked = boottime()
        leaver.signal(signal.SIGTERM)
        wait_until(lambda: swarm.leased(peer) == 0, SOON, "its samples back in the pool")
        assert leaver.process.wait(LONG) == 0
        assert boottime() - asked < SOON
        admitted_once(swarm, step.result(LONG))
    assert withheld(swarm, peer) == kept, "handed back, not expired"
    swarm.restart(leaver)


def test_sigkill_of_a_node_returns_its_samples_by_their_deadline_and_it_restores_its_weights_from_its_own_disk(
    swarm: Swarm,
) -> None:
    victim = swarm.nodes[1]
    (status,) = swarm.settle(victim)
    peer, kept = status["peer"], withheld(swarm, status["peer"])
    engine, bulk = child_of(victim, ENGINE), child_of(victim, BULK)
    with swarm.training(1) as step:
        swarm.wait_for_lease(peer)
        engine.suspend()  # so that the lease is still held when the node dies
        swarm.wait_for_lease(peer)
        victim.process.kill()
        assert victim.process.wait() == -signal.SIGKILL
        engine.resume()
        wait_until(lambda: swarm.leased(peer) == 0, LEASE_SECONDS + SOON, "its samples back in the pool")
        admitted_once(swarm, step.result(LONG))
    assert withheld(swarm, peer) > kept, "expired"
    wait_until(lambda: not (engine.is_running() or bulk.is_running()), SOON, "the children of a dead node are gone")

    (status,) = swarm.settle(swarm.restart(victim))
    assert status["peer"] == peer
    fetched = [
        artifact for artifact in status["exchange"]["artifacts"] if artifact["from_origin"] or artifact["from_peers"]
    ]
    assert all(artifact["kind"] == "delta" for artifact in fetched), "the snapshot was on its disk"


def test_sigkill_of_an_engine_returns_its_lease_at_once_and_the_node_works_again_with_the_right_weights(
    swarm: Swarm,
) -> None:
    node = swarm.nodes[0]
    (before,) = swarm.settle(node)
    kept = withheld(swarm, before["peer"])
    with swarm.training(1) as step:
        swarm.wait_for_lease(before["peer"])
        child_of(node, ENGINE).kill()
        wait_until(lambda: swarm.leased(before["peer"]) == 0, SOON, "its samples back in the pool")
        admitted_once(swarm, step.result(LONG))
    assert withheld(swarm, before["peer"]) == kept, "handed back, not expired"
    wait_until(lambda: grown(before, node.status(), "engine_restarts") == 1, LONG, "another engine")
    (after,) = swarm.settle(node)
    works_again(swarm, node, after["admitted"])


def test_sigkill_of_a_bulk_child_costs_a_node_its_links_for_a_moment_only(swarm: Swarm) -> None:
    node = swarm.nodes[0]
    (before,) = swarm.settle(node)
    child_of(node, BULK).kill()
    wait_until(lambda: grown(before, node.status(), "exchange", "restarts") == 1, LONG, "another bulk child")
    everyone = {other.status()["peer"] for other in swarm.nodes if other is not node}
    everyone |= {swarm.host.status()["members"][0]}

    def linked() -> set[str]:
        return {peer["peer"] for peer in node.status()["exchange"]["peers"] if peer["linked"]}

    wait_until(lambda: everyone - linked() == set(), LONG, "links to all the others")
    works_again(swarm, node, node.status()["admitted"])


def works_again(swarm: Swarm, node: Program, admitted: int) -> None:
    """A node takes part in the steps to come."""
    swarm.train(2)
    swarm.settle()
    assert node.status()["admitted"] > admitted


def test_a_host_that_is_killed_comes_back_as_the_same_swarm_and_its_nodes_find_it(swarm: Swarm) -> None:
    swarm.train(1)
    before, pids = swarm.host.status(), [node.process.pid for node in swarm.nodes]
    swarm.kill_host()
    swarm.start_host()
    after = swarm.host.status()
    for key in ("swarm", "run", "version", "seq", "generation"):
        assert after[key] == before[key], key
    records = swarm.train(2)
    assert [record.publication.version for record in records] == [before["version"] + 1, before["version"] + 2]
    assert all(record.publication.kind == "delta" for record in records), "no snapshot was needed"
    swarm.settle()
    assert [node.process.pid for node in swarm.nodes] == pids


def test_a_publication_that_dies_with_its_host_is_aborted_and_the_next_one_arrives(swarm: Swarm) -> None:
    swarm.train(1)
    swarm.settle()
    with half_published(swarm) as cut:
        wait_until(lambda: all(holds(node, cut) for node in swarm.nodes), LONG, "every node has begun to fetch it")
        assert swarm.host.status()["publishing"]
        swarm.kill_host()
    swarm.start_host()
    wait_until(lambda: not any(holds(node, cut) for node in swarm.nodes), LONG, "every node has given it up")
    assert swarm.ledger("SELECT state FROM publications WHERE seq = ?", cut) == [("aborted",)]
    (record,) = swarm.train(1)
    assert record.publication.seq > cut
    swarm.settle()


def test_training_goes_on_without_the_bootstrap(swarm: Swarm) -> None:
    swarm.settle()
    swarm.bootstrap.process.kill()
    swarm.bootstrap.process.wait()
    swarm.train(2)
    swarm.settle()
    swarm.start_bootstrap()
