"""Stopping a host as systemd does: what is leased is waited for, or, told twice, nothing is; nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.e2e.chaos import survived
from tests.e2e.world import ENGINE, GROUP, LONG, PROMPTS, Swarm, child_of

pytestmark = pytest.mark.slow

SOON = 5.0
"""Well before any lease's deadline: the shortest lasts 10 s."""


@pytest.fixture(autouse=True)
def all_survive(swarm: Swarm) -> Iterator[None]:
    """Around each: nothing stuck, lost or doubled."""
    swarm.mend()
    with survived(swarm):
        yield


def first_node(swarm: Swarm) -> str:
    """The id of a node that serves the newest version."""
    (status,) = swarm.settle(swarm.nodes[0])
    return str(status["peer"])


def test_sigterm_of_a_host_waits_until_what_is_leased_has_come_in(swarm: Swarm) -> None:
    peer = first_node(swarm)
    with swarm.training(1) as step:
        swarm.wait_for_lease(peer)
        (open_step,) = [one for one in swarm.host.status()["work"]["steps"] if one["leased"]]
        swarm.host.signal(signal.SIGTERM)
        assert swarm.host.wait_for("draining", LONG)["leases"] > 0
        assert swarm.host.process.wait(LONG) == 0
        assert swarm.in_ledger(open_step["step"]) >= open_step["admitted"] + open_step["leased"]
        swarm.start_host()
        (record,) = step.result(LONG)
    assert swarm.in_ledger(record.step) == PROMPTS * GROUP


def test_a_second_sigterm_waits_for_nothing_and_the_next_start_takes_what_was_leased(swarm: Swarm) -> None:
    peer = first_node(swarm)
    with swarm.training(1) as step:
        swarm.wait_for_lease(peer)
        engine = child_of(swarm.nodes[0], ENGINE)
        engine.suspend()  # its lease does not end before its deadline
        try:
            swarm.host.signal(signal.SIGTERM)
            asked = swarm.host.wait_for("draining", LONG)
            swarm.host.signal(signal.SIGTERM)
            stopped = swarm.host.wait_for("stopping", LONG)
            assert swarm.host.process.wait(LONG) == 0
        finally:
            engine.resume()
        assert stopped["seconds"] - asked["seconds"] < SOON
        swarm.start_host()
        (record,) = step.result(LONG)
    assert swarm.in_ledger(record.step) == PROMPTS * GROUP
