"""What every test under faults asks afterwards, and how it arms a program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aurora_p2p.delta.encode import encode_snapshot
from aurora_p2p.delta.tensors import layout_id
from aurora_p2p.engine.model import checkpoint_bits
from aurora_p2p.host.programs import Program, wait_until
from aurora_p2p.host.watching import Watching
from aurora_p2p.local.faults import Rule
from aurora_p2p.testing.audit import accepted_in, audit, samples_in
from aurora_p2p.testing.faults import marks_in, plan
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.train.publish import snapshot_bound
from aurora_p2p.types import NO_BASE
from aurora_p2p.wire.manifest import TensorEntry
from aurora_p2p.wire.trainer import BeginPublish
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
    assert watching.dog.stalls == [], watching.dog.stalls
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


@contextmanager
def half_published(swarm: Swarm) -> Iterator[int]:
    """A snapshot of the next version, begun and left there; yields its seq."""
    specs, bits = checkpoint_bits(swarm.trainer.model)
    version, seq = swarm.host.status()["version"] + 1, swarm.host.status()["seq"] + 1
    with SwarmClient.open(swarm.host.home) as client:
        client.begin_publish(
            BeginPublish(
                version=version,
                kind="snapshot",
                base_version=NO_BASE,
                base_digest=b"",
                layout=layout_id(specs),
                size_bound=snapshot_bound(specs),
                class_map=b"",
                tensors=tuple(TensorEntry(spec, "full") for spec in specs),
                model=swarm.trainer.config,
            )
        )
        blocks = list(encode_snapshot(specs, bits))
        for block in blocks[: len(blocks) // 2]:
            client.send_body(block)
        yield seq


def holds(node: Program, seq: int) -> bool:
    return any(artifact["seq"] == seq for artifact in node.status()["exchange"]["artifacts"])
