"""The plan of faults and the verdict: a seed is a plan, every kind is in it, every broken promise is told."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from aurora_p2p.host.chaos import LATE, plan_of
from aurora_p2p.host.chaos_report import broken, render_chaos
from aurora_p2p.testing.faults import POINTS

GOOD: dict[str, Any] = {
    "seed": 0,
    "nodes": 3,
    "faults": [{"what": "the host is killed", "whom": "host", "seconds": 4.2, "detail": ""}],
    "not_recovered": 0,
    "max_recovery_seconds": 4.2,
    "versions": 30,
    "audits_passed": 4,
    "audits_failed": 0,
    "mismatches": 0,
    "accepted": 9000,
    "doubled": 0,
    "lost": 0,
    "stuck": [],
    "longest_still_seconds": 1.5,
    "heldout": {"control": 0.2, "control_sd": 0.01, "after": 0.5},
    "wall_seconds": 240.0,
}


def test_the_seed_decides_the_plan() -> None:
    assert plan_of(3, 3) == plan_of(3, 3)
    assert plan_of(3, 3) != plan_of(4, 3)


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_of_fault_is_in_every_plan_once_and_hits_what_there_is(seed: int) -> None:
    plan = plan_of(seed, 2)
    assert max(Counter(fault.what for fault in plan).values()) == 1
    assert {fault.how for fault in plan} == {"kill", "point", "stop", "child", "gone", "join", "corrupt", "date"}
    assert {fault.whom for fault in plan} <= {"node0", "node1", LATE, "host", "trainer", "bootstrap"}
    assert {fault.point for fault in plan if fault.how == "point"} <= POINTS.keys()


def test_a_plan_needs_a_node() -> None:
    with pytest.raises(ValueError, match="needs a node"):
        plan_of(0, 0)


def test_a_run_in_which_all_held_breaks_nothing() -> None:
    assert broken(GOOD) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"not_recovered": 2}, "2 faults were not recovered"),
        ({"audits_failed": 1}, "1 nodes do not hold"),
        ({"mismatches": 1}, "digest audits failed"),
        ({"doubled": 1}, "admitted twice"),
        ({"lost": 3}, "3 acknowledged samples are missing"),
        ({"stuck": [{"name": "node1"}]}, "stood still"),
        ({"heldout": {"control": 0.2, "after": 0.2}}, "nothing was learned"),
    ],
)
def test_each_promise_that_is_not_kept_is_told(change: dict[str, Any], said: str) -> None:
    (sentence,) = broken({**GOOD, **change})
    assert said in sentence


def test_the_table_shows_each_fault_and_who_never_recovered() -> None:
    lost = {"what": "a node is stopped for 10 s", "whom": "node1", "seconds": None, "detail": "it ended"}
    text = render_chaos({**GOOD, "faults": [*GOOD["faults"], lost]})
    assert "4.2 s" in text
    assert "NEVER" in text
    assert "0.200 +- 0.010" in text
