"""A plan of faults for `aurora-host demo --chaos`: what breaks, whom it hits, in which order. Pure; the seed decides.

how        kill      SIGKILL at once                       start again
           point     SIGKILL by a crash point              start again without it
           stop      SIGSTOP                               SIGCONT after `seconds`
           child     SIGKILL to a child of the program     its daemon starts another
           gone      SIGKILL, and it stays away            nothing: the others go on
           join      a node that was not there before      nothing
           corrupt   the program's next segment arrives with a wrong byte; it has to be fetched again
           date      the program starts again with its date moved
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

How = Literal["kill", "point", "stop", "child", "gone", "join", "corrupt", "date"]
Kind = Literal["node", "host", "trainer", "bootstrap"]
STOP_SECONDS = 10.0
MONTH_SECONDS = 30 * 86_400.0
LATE = "late"
"""Name of the node that joins late."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. whom: a program's name; point: crash point or child's module; hit: at which time it is reached."""

    what: str
    how: How
    whom: str
    point: str = ""
    hit: int = 1
    seconds: float = 0.0


_NODE: tuple[tuple[str, How, str, int, float], ...] = (
    ("a node is killed while it holds a lease", "kill", "", 1, 0.0),
    ("a node is killed in the middle of a transfer", "point", "segment.stored", 3, 0.0),
    ("a node is killed in the middle of a commit", "point", "weights.committing", 1, 0.0),
    ("a node is killed before it notes its receipts", "point", "results.answered", 1, 0.0),
    ("the engine of a node is killed", "child", "aurora_p2p.engine.worker", 1, 0.0),
    ("the bulk process of a node is killed", "child", "aurora_p2p.net.bulk", 1, 0.0),
    ("a node is stopped for 10 s", "stop", "", 1, STOP_SECONDS),
    ("a node receives a corrupted segment", "corrupt", "", 1, 0.0),
    ("the date of a node jumps by a month", "date", "", 1, MONTH_SECONDS),
)
_OTHERS: tuple[tuple[str, How, Kind, str, int, float], ...] = (
    ("the host is killed", "kill", "host", "", 1, 0.0),
    ("the host is killed in the middle of a publication", "point", "host", "body.added", 1, 0.0),
    ("the host is killed between disk and acknowledgement", "point", "host", "results.durable", 2, 0.0),
    ("the host is stopped for 10 s", "stop", "host", "", 1, STOP_SECONDS),
    ("the trainer is killed in the middle of a step", "point", "trainer", "step.trained", 2, 0.0),
    ("the trainer is killed while it publishes", "point", "trainer", "publish.sending", 2, 0.0),
    ("the bootstrap is gone for good", "gone", "bootstrap", "", 1, 0.0),
)


def plan_of(seed: int, nodes: int) -> list[Fault]:
    """Every kind of fault once, shuffled; each hits a node by chance. Raises ValueError without nodes."""
    if nodes < 1:
        raise ValueError("a plan of faults needs a node")
    rng = Random(seed)  # noqa: S311 - a plan is no secret
    names = [f"node{number}" for number in range(nodes)]
    plan = [Fault(what, how, rng.choice(names), point, hit, after) for what, how, point, hit, after in _NODE]
    plan += [Fault(*other) for other in _OTHERS]
    plan.append(Fault("a node joins late", "join", LATE))
    rng.shuffle(plan)
    return plan
