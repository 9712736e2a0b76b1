"""What the crash benchmark breaks: every crash point in every process that reaches it, torn writes, refusing disks,
broken connections, stops; each with a seeded hit and, for nodes, a seeded choice of the node.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from aurora_p2p.local.faults import Process, Rule
from aurora_p2p.testing.faults import corrupt, cut, disk_full, kill, stop, torn

Victim = Literal["node", "host", "trainer"]
Healing = Literal["restart", "child", "continue", "itself"]
"""What ends the fault: the program is started again; the daemon replaces its child; SIGCONT; nothing is needed."""
Trigger = Literal["", "start", "abort"]
"""How a point is reached that normal work does not reach: by starting the victim, by killing a publishing trainer."""

STORING = ("artifact.created", "page.saved", "segment.storing", "segment.stored")
FINISHING = ("artifact.finishing", "artifact.finished", "file.synced", "file.renamed")
WEIGHTS = ("weights.staging", "weights.staged", "weights.committing", "weights.committed")
WORK = ("lease.received", "samples.generated", "results.submitting", "results.answered")
ENGINE = ("engine.committing", "engine.answering", "engine.generated")
PUBLISHING = (
    "seq.reserved",
    "header.written",
    "header.opened",
    "body.added",
    "final.signed",
    "final.written",
    "publication.completing",
    "publication.completed",
    "publication.offered",
)
LEASING = ("prompts.decided", "prompts.durable", "grant.decided", "grant.durable", "results.decided", "results.durable")
LEDGER = ("ledger.writing", "ledger.written")
TRAINER = (
    "prompts.submitted",
    "rollouts.taken",
    "step.trained",
    "publish.begun",
    "publish.sending",
    "publish.ending",
    "publish.ended",
)
ON_START = ("artifact.retiring", "memory.writing")


@dataclass(frozen=True, slots=True)
class Fault:
    """rule: of the hit. hits: the last one worth drawing (1: the first alone)."""

    name: str
    victim: Victim
    rule: Callable[[int], Rule]
    healing: Healing
    hits: int = 1
    trigger: Trigger = ""


@dataclass(frozen=True, slots=True)
class Case:
    number: int
    fault: Fault
    program: str
    hit: int
    seed: int

    @property
    def rule(self) -> Rule:
        return self.fault.rule(self.hit)


def _kills(
    victim: Victim, points: Sequence[str], process: Process, hits: int = 1, trigger: Trigger = ""
) -> list[Fault]:
    healing: Healing = "child" if process in ("bulk", "engine") else "restart"
    where = process if process == victim else f"{victim}'s {process}"
    when = {"": "", "start": " while starting", "abort": " during an abort"}[trigger]

    def fault(point: str) -> Fault:
        return Fault(
            f"{where} killed at {point}{when}",
            victim,
            lambda hit: kill(point, hit=hit, process=process),
            healing,
            hits,
            trigger,
        )

    return [fault(point) for point in points]


def _stops(victim: Victim, points: Sequence[str]) -> list[Fault]:
    def fault(point: str) -> Fault:
        return Fault(
            f"{victim} stopped at {point}", victim, lambda hit: stop(point, hit=hit, process=victim), "continue", 3
        )

    return [fault(point) for point in points]


def _disks(victim: Victim, path: str, hits: int = 3) -> list[Fault]:
    """A torn write kills; a full disk must be survived."""
    return [
        Fault(
            f"{victim}: torn write of {path}", victim, lambda hit: torn(path, hit=hit, process=victim), "restart", hits
        ),
        Fault(
            f"{victim}: no space for {path}",
            victim,
            lambda hit: disk_full("write", path, hit=hit, process=victim),
            "itself",
            hits,
        ),
    ]


def faults() -> list[Fault]:
    """Every kind of case."""
    return [
        *_kills("node", (*STORING, *FINISHING), "node", hits=4),
        *_kills("node", WEIGHTS, "node", hits=2),
        *_kills("node", WORK, "node", hits=6),
        *_kills("node", ENGINE, "engine", hits=4),
        *_kills("node", ("bulk.sending", "bulk.receiving", "bulk.received"), "bulk", hits=4),
        *_kills("node", ("memory.writing", "weights.staging", "file.renamed"), "node", trigger="start"),
        *_kills("node", ("engine.answering",), "engine", trigger="start"),
        *_kills("node", ("artifact.retiring",), "node", trigger="abort"),
        *_kills("host", (*PUBLISHING, *LEASING), "host", hits=3),
        *_kills("host", LEDGER, "host", hits=12),
        *_kills("host", (*STORING[:2], *FINISHING), "host", hits=2),
        *_kills("host", ("bulk.sending",), "bulk", hits=4),
        *_kills("host", ("ledger.written",), "host", trigger="start"),
        *_kills("host", ("publication.aborting", "artifact.retiring"), "host", trigger="abort"),
        *_kills("trainer", TRAINER, "trainer", hits=2),
        *_stops("node", ("weights.committing", "results.submitting", "segment.stored")),
        *_stops("host", ("body.added", "results.durable")),
        *_stops("trainer", ("publish.sending",)),
        *_disks("node", "*/body"),
        *_disks("node", "*/pages"),
        *_disks("host", "*/body"),
        *_disks("host", "*ledger.sqlite", hits=6),
        Fault("host's fold killed at fold.sending", "host", lambda hit: kill("fold.sending", process="fold"), "itself"),
        Fault("node's bulk: connection cut", "node", lambda hit: cut("in", 700 * hit), "itself", 4),
        Fault("host's bulk: connection cut", "host", lambda hit: cut("out", 700 * hit), "itself", 4),
        Fault("node's bulk: one byte corrupted", "node", lambda hit: corrupt(700 * hit), "itself", 4),
    ]


def draw(count: int, seed: int, nodes: int, only: str = "") -> list[Case]:
    """`count` cases: each fault in turn, in a random order of its own each round; the same ones for the same seed.

    only: leave out the faults whose name does not hold it.
    """
    rng, kinds = random.Random(seed), [fault for fault in faults() if only in fault.name]

    def rounds() -> Iterator[Fault]:
        while True:
            yield from rng.sample(kinds, len(kinds))

    cases = []
    for number, fault in zip(range(count), rounds(), strict=False):
        case_seed = rng.randrange(1 << 32)
        chance = random.Random(case_seed)
        program = f"node{chance.randrange(nodes)}" if fault.victim == "node" else fault.victim
        cases.append(Case(number, fault, program, chance.randint(1, fault.hits), case_seed))
    return cases
