"""What it costs the others when one node is killed or freezes in the middle of a transfer.

Roles are what a node was doing at that moment, by the pushes that had reached it: `gateway` took most segments over
the line between regions, `first_holder` most straight from the origin, `plain` the fewest of both. The cost is the last
survivor's time beside the median of undisturbed transfers in the same swarm, before.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aurora_p2p.testing.netlab import Lab
from benchmarks.swarm_net_fleet import ANSWER_SECONDS, START_SECONDS, Fleet, Message, Trial
from benchmarks.swarm_net_plans import children_of

ROLES = ("gateway", "first_holder", "plain")
MOMENTS = (0.2, 0.5, 0.9)
"""Shares of an undisturbed transfer's time."""
WAYS = (signal.SIGKILL, signal.SIGSTOP)
UNDISTURBED = 3
"""Transfers to compare with, after a first one that is left out: links and estimates are cold in it."""
STUCK_FACTOR = 4.0
"""A policy that needs so many times the undisturbed time after a death counts as stuck."""
PATIENCE_SECONDS = 90.0


def victim(role: str, statuses: dict[int, Message], before: dict[int, Message]) -> int:
    """The node that plays a role in the transfer that is on its way. before: statuses from before it."""

    def pushed(node: int, kind: str) -> int:
        return int(statuses[node]["pushes"].get(kind, 0)) - int(before[node]["pushes"].get(kind, 0))

    nodes = sorted(statuses)
    if role == "plain":
        return min(nodes, key=lambda node: pushed(node, "gateway") + pushed(node, "first"))
    kind = "gateway" if role == "gateway" else "first"
    return max(nodes, key=lambda node: pushed(node, kind))


def disturbed(fleet: Fleet, size: int, role: str, at: float, way: signal.Signals) -> tuple[Trial, int]:
    """One transfer in which a node is taken away after `at` seconds; returns it and the node."""
    nodes = set(fleet.processes) - {0}
    before = fleet.statuses(0, nodes)
    taken: list[int] = []

    def strike(fleet: Fleet, began: float) -> set[int]:
        time.sleep(max(began + at - time.monotonic(), 0.0))
        number = victim(role, fleet.statuses(0, nodes), before)
        fleet.signal(number, way)
        taken.append(number)
        return set(taken)

    return fleet.transfer(size, patience=PATIENCE_SECONDS, meanwhile=strike), taken[0]


def revive(fleet: Fleet, number: int, folder: Path) -> None:
    """Let a frozen node die and start another one in its place, with an empty disk."""
    fleet.signal(number, signal.SIGKILL)
    shutil.rmtree(folder / f"node{number}", ignore_errors=True)
    fleet.start(number)
    fleet.wait_for("ready", {number}, START_SECONDS)
    fleet.wait_until_linked()


def extra_seconds(lab: Lab, folder: Path, size: int, roles: Sequence[str]) -> dict[str, Any]:
    """role -> the worst case in seconds, and every case."""
    with Fleet.open(lab, folder, "ours") as fleet:
        fleet.transfer(size)
        usual = statistics.median(fleet.transfer(size).last for _ in range(UNDISTURBED))
        report: dict[str, Any] = {"undisturbed_seconds": usual}
        for role in roles:
            cases = []
            for way in WAYS:
                for moment in MOMENTS:
                    trial, number = disturbed(fleet, size, role, usual * moment, way)
                    extra = trial.last - usual if trial.complete else None
                    cases.append({"at": moment, "by": way.name, "node": number, "extra_seconds": extra})
                    revive(fleet, number, folder)
            report[role] = {"cases": cases, "worst": _worst(cases)}
        return report


def completes(lab: Lab, folder: Path, size: int, policy: str, bound: float) -> bool:
    """Whether every survivor completes when a node that others depend on is killed half-way."""
    lines = [node.access for node in lab.nodes]
    with Fleet.open(lab, folder, policy) as fleet:
        if policy == "ours":
            return disturbed(fleet, size, "first_holder", bound / 2, signal.SIGKILL)[0].complete
        relays = [node for node, children in children_of(policy, lines).items() if node and children]
        doomed = relays[len(relays) // 2]

        def strike(fleet: Fleet, began: float) -> set[int]:
            time.sleep(max(began + bound / 2 - time.monotonic(), 0.0))
            fleet.signal(doomed, signal.SIGKILL)
            return {doomed}

        return fleet.transfer(size, patience=STUCK_FACTOR * bound + ANSWER_SECONDS, meanwhile=strike).complete


def _worst(cases: Sequence[dict[str, Any]]) -> float | None:
    """None when a transfer did not complete at all."""
    values = [case["extra_seconds"] for case in cases]
    return None if None in values else max(values)
