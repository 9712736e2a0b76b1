"""What every test under faults asks afterwards, and how it arms a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aurora_p2p.host.programs import Program, wait_until
from aurora_p2p.host.watching import Watching
from aurora_p2p.local.faults import Rule
from aurora_p2p.testing.audit import accepted_in, audit, samples_in
from aurora_p2p.testing.faults import marks_in, plan
from tests.e2e.world import LONG, Swarm


@contextmanager
def survived(swarm: Swarm) -> Iterator[Watching]:
    """Around a fault: nothing is stuck meanwhile, and afterwards nothing is wrong, lost or doubled.

    Every node left serves the host's version, proven by a full digest audit; every sample was admitted at most once,
    and none that was acknowledged is missing.
    """
    with Watching(swarm.host.home, {node.name: node.home for node in swarm.nodes}) as watching:
        yield watching
        statuses = swarm.settle()
    assert watching.dog.stalls == []
    logs = [node.home / "logs" / "node.log" for node in swarm.nodes]
    told = {status["peer"]: accepted_in(log) for status, log in zip(statuses, logs, strict=True)}
    result = audit(told, samples_in(swarm.host.home / "ledger.sqlite"))
    assert (result.doubled, result.lost) == ((), ())
    assert result.accepted > 0


@dataclass(frozen=True)
class Armed:
    """A plan of faults for one program, which acts once in all of its processes."""

    env: dict[str, str]
    marks: Path

    @classmethod
    def with_rules(cls, folder: Path, *rules: Rule) -> Armed:
        marks = folder / "marks"
        marks.mkdir()
        return cls(plan(*rules).environment(marks), marks)

    def wait(self, count: int = 1) -> None:
        """Until the plan has acted."""
        wait_until(lambda: len(marks_in(self.marks)) >= count, LONG, "the fault")


def ended(program: Program) -> None:
    """Wait until a program is gone."""
    wait_until(lambda: program.process.poll() is not None, LONG, f"the end of {program.name}")


def held(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that must come by itself."""
    wait_until(condition, LONG, what)
