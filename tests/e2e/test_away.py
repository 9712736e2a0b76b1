"""Machines that are away or have the wrong date: a moved wall clock, a dead bootstrap, a host killed repeatedly."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aurora_p2p.host.programs import Program, wait_until
from aurora_p2p.local.clock import OFFSET
from tests.e2e.chaos import ended, half_published, holds, survived
from tests.e2e.world import LONG, PRIVATE, Swarm

pytestmark = pytest.mark.slow

MONTH = timedelta(days=30)


def moved(shift: timedelta) -> dict[str, str]:
    return {OFFSET: str(shift.total_seconds())}


@pytest.mark.parametrize("shift", [MONTH, -MONTH], ids=["a month ahead", "a month behind"])
def test_wrong_dates_change_nothing_but_the_logs(shift: timedelta, swarm: Swarm) -> None:
    swarm.mend()
    swarm.settle()
    for program in (swarm.host, *swarm.nodes[:2]):
        assert program.stop() == 0
    with survived(swarm):
        swarm.start_host(moved(shift))
        swarm.restart(swarm.nodes[0], moved(-shift))
        swarm.restart(swarm.nodes[1], moved(shift))
        swarm.train(2)
        swarm.settle()
        for program, expected in ((swarm.host, shift), (swarm.nodes[0], -shift), (swarm.nodes[1], shift)):
            kind = "host" if program is swarm.host else "node"
            assert abs(last_time(program.home / "logs" / f"{kind}.log") - expected) < timedelta(minutes=10)
        for program in (swarm.host, *swarm.nodes[:2]):
            assert program.stop() == 0
        swarm.start_host()  # the date is set right, by as much at once
        swarm.restart(swarm.nodes[0])
        swarm.restart(swarm.nodes[1])
        swarm.train(1)


def last_time(log: Path) -> timedelta:
    """How far from now the newest line of a log says it was written."""
    line = json.loads(log.read_text().splitlines()[-1])
    return datetime.fromisoformat(line["time"]) - datetime.now(UTC)


def test_a_node_that_starts_again_while_the_bootstrap_is_gone_still_finds_its_host(swarm: Swarm) -> None:
    swarm.mend()
    swarm.settle()
    swarm.bootstrap.process.kill()
    swarm.bootstrap.process.wait()
    victim = swarm.nodes[0]
    victim.process.kill()
    ended(victim)
    with survived(swarm):
        bare = [swarm.swarm_id, "--bootstrap", swarm.address, *PRIVATE]
        swarm.restart(victim, where=bare)
        swarm.train(2)
    swarm.start_bootstrap()


def test_an_abort_reaches_a_node_that_was_away_while_the_host_was_killed_again_and_again(swarm: Swarm) -> None:
    swarm.mend()
    swarm.train(1)
    swarm.settle()
    with survived(swarm):
        with half_published(swarm) as cut:
            wait_until(lambda: all(holds(node, cut) for node in swarm.nodes), LONG, "every node has begun to fetch it")
            with asleep(swarm.nodes[2]):
                for _ in range(2):
                    swarm.kill_host()
                    swarm.start_host()
                    wait_until(lambda: not any(holds(node, cut) for node in swarm.nodes[:2]), LONG, "two have heard")
                swarm.kill_host()
        swarm.start_host()
        wait_until(lambda: not holds(swarm.nodes[2], cut), LONG, "the one that was away has heard")
        swarm.train(1)


@contextmanager
def asleep(node: Program) -> Iterator[None]:
    """SIGSTOP, and SIGCONT in any case."""
    node.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        node.signal(signal.SIGCONT)
