"""Disks that fill up under a host and under a node, while another swarm's programs are stopped for a minute.

A full disk makes things wait: what is acknowledged is always on disk, what was there is served on, and everything goes
on by itself when there is room.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from aurora_p2p.host.programs import Programs, wait_until
from aurora_p2p.local.clock import boottime
from aurora_p2p.train.loop import StepRecord
from tests.e2e.chaos import survived
from tests.e2e.disks import SmallDisk, small_disk
from tests.e2e.world import GROUP, LONG, PROMPTS, QUICK, SLOW, Swarm

pytestmark = pytest.mark.slow

STOPPED_SECONDS = 60.0


@dataclass(frozen=True)
class Stopped:
    """The session's host and one of its nodes, stopped in the middle of the work. since: boottime; steps: the work."""

    since: float
    steps: Future[list[StepRecord]]


@pytest.fixture(scope="module")
def stopped(swarm: Swarm) -> Iterator[Stopped]:
    """Stopped before the tests of this module, while a training runs and leases are held; continued in any case."""
    swarm.mend()
    sleepers = (swarm.host, swarm.nodes[0])
    (status, *_) = swarm.settle()
    with swarm.training(3, SLOW) as steps:
        swarm.wait_for_lease(status["peer"])
        for program in sleepers:
            program.signal(signal.SIGSTOP)
        try:
            yield Stopped(boottime(), steps)
        finally:
            for program in sleepers:
                program.signal(signal.SIGCONT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_a_full_disk_makes_a_host_wait_and_nothing_acknowledged_is_lost(stopped: Stopped, folder: Path) -> None:
    with small_disk(folder / "host", "*ledger.sqlite") as disk, Programs(folder) as programs:
        small = Swarm.start(programs, disk.env)
        small.nodes = [small.start_node("node")]
        small.settle()
        with survived(small), small.training(4, SLOW) as steps:
            small.wait_for_lease(small.nodes[0].status()["peer"])
            disk.fill()
            small.host.wait_for("disk-full", LONG)
            assert small.nodes[0].process.poll() is None
            look_while_full(small, disk)
            disk.free()
            small.host.wait_for("disk-room", LONG)
            records = steps.result(LONG)
        assert [record.tokens for record in records] == [PROMPTS * GROUP * SLOW.max_tokens] * 4
        assert small.host.process.poll() is None


def look_while_full(small: Swarm, disk: SmallDisk) -> None:
    """What a person sees: no version, no sample, and a status that says why."""
    if not disk.mounted:
        return  # it is over by itself, maybe before one can look
    status = small.host.status()
    assert "full" in status["ledger"]["waits"]
    version = status["version"]
    assert small.host.status()["version"] == version


def test_a_publication_that_finds_no_room_is_made_by_itself_when_there_is_some(stopped: Stopped, folder: Path) -> None:
    with small_disk(folder / "host", "*/body") as disk, Programs(folder) as programs:
        small = Swarm.start(programs, disk.env)
        small.nodes = [small.start_node("node")]
        small.settle()
        with survived(small):
            disk.fill(leave_mib=32)  # less than a store leaves free for others: the ledger has room, artifacts have not
            with small.training(2, QUICK) as steps:
                if disk.mounted:
                    waits = lambda: "to spare" in small.host.status()["publication_waits"]  # noqa: E731
                    wait_until(waits, LONG, "a host that says it has no room to publish")
                    assert not steps.done()
                    disk.free()
                records = steps.result(LONG)
        assert len(records) == 2


def test_a_full_disk_makes_a_node_pause_its_downloads_and_serve_on(stopped: Stopped, folder: Path) -> None:
    with small_disk(folder / "node0", "*/body") as disk, Programs(folder) as programs:
        small = Swarm.start(programs)
        small.nodes = [small.start_node("node0", env=disk.env), small.start_node("node1")]
        small.settle()
        victim = small.nodes[0]
        with survived(small):
            disk.fill()
            version = small.train(2)[-1].publication.version
            if disk.mounted:
                wait_until(lambda: complains(victim.status()), LONG, "a node that says its disk is full")
                assert victim.status()["version"] < version
                serves_on(small)
            assert victim.process.poll() is None
            disk.free()
        assert victim.status()["version"] == version


def complains(status: dict[str, object]) -> bool:
    """Whether a person who looks at the node learns that it has no room."""
    exchange = status["exchange"]
    assert isinstance(exchange, dict)
    return bool(exchange["disk_paused"]) or "spare" in str(status["problem"]) or "No space" in str(status["problem"])


def serves_on(small: Swarm) -> None:
    """A newcomer gets what the node without room holds, from whoever has it."""
    with small.guest("newcomer") as newcomer:
        small.settle(newcomer)
        assert newcomer.stop() == 0


def test_a_host_and_a_node_that_were_stopped_for_a_minute_go_on_with_the_training_that_ran(
    stopped: Stopped, swarm: Swarm
) -> None:
    end = stopped.since + STOPPED_SECONDS
    wait_until(lambda: boottime() >= end, max(end - boottime(), 0.0) + 5.0, "a minute")
    programs = (swarm.host, *swarm.nodes)
    assert [program.process.poll() for program in programs] == [None] * 4
    assert not stopped.steps.done()
    swarm.host.signal(signal.SIGCONT)
    with survived(swarm):
        records = stopped.steps.result(LONG)
        swarm.nodes[0].signal(signal.SIGCONT)
    assert [record.tokens for record in records] == [PROMPTS * GROUP * SLOW.max_tokens] * 3
    assert [program.process.poll() for program in programs] == [None] * 4, "nobody had to be started again"
    before = swarm.nodes[0].status()["admitted"]
    swarm.train(2)
    assert swarm.nodes[0].status()["admitted"] > before
