"""Programs that are killed at the worst moments, by crash points: nodes, their children, the host, the trainer.

`python -m benchmarks.crash` goes through every point with the simulated engine; here the real engine and a real trainer
meet those that the promises are about.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aurora_p2p.delta.encode import encode_snapshot
from aurora_p2p.engine.model import checkpoint_bits
from aurora_p2p.host.programs import Program
from aurora_p2p.local.faults import Process
from aurora_p2p.testing.faults import kill
from tests.e2e.chaos import Armed, ended, survived
from tests.e2e.world import GROUP, LONG, PROMPTS, QUICK, SLOW, Swarm

pytestmark = pytest.mark.slow

NODE_POINTS: list[tuple[Process, str, int]] = [
    ("node", "segment.stored", 3),  # mid-transfer
    ("bulk", "bulk.receiving", 3),
    ("node", "weights.committing", 1),  # mid-commit
    ("engine", "engine.committing", 1),
    ("node", "results.answered", 1),  # mid-lease
]


@pytest.fixture(autouse=True)
def everybody(swarm: Swarm) -> None:
    """A test that failed has left programs dead; the next one is not about them."""
    swarm.mend()


@pytest.mark.parametrize(("process", "point", "hit"), NODE_POINTS)
def test_a_node_killed_at_any_moment_comes_back_with_the_right_weights_and_nothing_is_lost(
    process: Process, point: str, hit: int, swarm: Swarm, tmp_path: Path
) -> None:
    swarm.settle()
    assert swarm.nodes[1].stop() == 0
    armed = Armed.with_rules(tmp_path, kill(point, hit=hit, process=process))
    with survived(swarm):
        victim = swarm.restart(swarm.nodes[1], armed.env)
        if point != "segment.stored":
            swarm.settle(victim)  # it is there for the next step; what it loads at its start is not committed
        with swarm.training(2, SLOW) as steps:
            armed.wait()
            if process == "node":
                ended(victim)
                swarm.restart(victim)
            steps.result(LONG)
        swarm.train(1)


HOST_POINTS = [
    ("body.added", "Abort"),  # mid-publish
    ("publication.completed", ""),
    ("results.decided", ""),  # mid-admission
    ("results.durable", ""),  # between fsync and acknowledgement
]


@pytest.mark.parametrize(("point", "leads_to"), HOST_POINTS)
def test_a_host_killed_at_any_moment_comes_back_and_the_training_that_runs_goes_on(
    point: str, leads_to: str, swarm: Swarm, tmp_path: Path
) -> None:
    swarm.train(1)
    swarm.settle()
    before = swarm.host.status()["version"]
    assert swarm.host.stop() == 0
    armed = Armed.with_rules(tmp_path, kill(point, process="host"))
    with survived(swarm):
        swarm.start_host(armed.env)
        with swarm.training(2, QUICK) as steps:
            armed.wait()
            ended(swarm.host)
            swarm.start_host()
            records = steps.result(LONG)
    assert [record.publication.version for record in records] == [before + 1, before + 2]
    assert all(record.publication.kind == "delta" for record in records), "the trainer knew what the nodes hold"
    assert all(record.tokens == PROMPTS * GROUP * QUICK.max_tokens for record in records)
    if leads_to == "Abort":
        assert swarm.ledger("SELECT count(*) FROM publications WHERE state = 'aborted'")[0][0] > 0


class Job:
    """A training job in a process of its own; the same folder is the same job again."""

    def __init__(self, swarm: Swarm, name: str, until: int) -> None:
        self._swarm, self.name, self.until = swarm, name, until

    def start(self, env: Mapping[str, str] | None = None) -> Program:
        words = ["python", "-m", "aurora_p2p.train.process", str(self._swarm.host.home)]
        size = ["--prompts", str(PROMPTS), "--group", str(GROUP), "--lr", "0.01", "--eps", "0.001"]
        task = ["--checkpoint", str(self._swarm.checkpoint), "--task", SLOW.path, "--until", str(self.until)]
        return self._swarm.programs.start(self.name, [*words, *size, *task], dict(env or {}))


@pytest.mark.parametrize("point", ["step.trained", "publish.sending", "publish.ended"])
def test_a_trainer_killed_at_any_moment_goes_on_where_it_was_and_loses_no_step(
    point: str, swarm: Swarm, tmp_path: Path
) -> None:
    swarm.settle()
    before = swarm.host.status()["version"]
    job = Job(swarm, f"job-{point}", before + 3)
    specs, bits = checkpoint_bits(swarm.trainer.model)
    first_publication = len(list(encode_snapshot(specs, bits))) if point == "publish.sending" else 1
    armed = Armed.with_rules(tmp_path, kill(point, hit=first_publication + 1, process="trainer"))
    with survived(swarm):
        first = job.start(armed.env)
        ended(first)
        again = job.start()
        entered = again.wait_for("entered", LONG)
        again.wait_for("finished", LONG)
        assert again.process.wait(LONG) == 0
    assert entered["saved"] is not None
    steps = [*events_of(first, "step"), *events_of(again, "step")]
    assert sorted({step["step"] for step in steps}) == [step["step"] for step in steps], "no step was taken twice"
    assert entered["version"] <= entered["saved"] + 1
    assert all(step["max_lag"] <= 1 for step in steps)


def events_of(program: Program, name: str) -> list[dict[str, Any]]:
    return [event for event in program.seen() if event["event"] == name]


def test_a_job_says_what_it_does_in_lines_of_json(swarm: Swarm) -> None:
    swarm.settle()
    job = Job(swarm, "job-whole", swarm.host.status()["version"] + 2).start()
    job.wait_for("finished", LONG)
    assert job.process.wait(LONG) == 0
    (step,) = events_of(job, "step")
    assert json.loads(json.dumps(step))["version"] == step["step"] + 1
    swarm.settle()
