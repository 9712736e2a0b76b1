"""benchmarks.swarm_sim on swarms small enough for a test: every policy runs, and the report has the promised keys."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import swarm_sim
from benchmarks.swarm_sim_bound import Figures
from benchmarks.swarm_sim_rivals import POLICIES
from benchmarks.swarm_sim_scenarios import SCENARIOS, Scenario, cast

SMALL = Scenario(8, 2, mebibytes=4, goal={"small": 1.0, "small_next": 1.0})
KEYS = {"last_over_bound", "median_over_bound", "origin_copies", "cross_region_copies", "duplicate_ratio"}
NAMES = "16x1g 4x8 heterogeneous origin_bound nat_half churn_10 malicious_10 malicious_10_next nodes_200 subsecond"


def figures(policy: str, scenario: Scenario = SMALL, seed: int = 1) -> dict[str, Figures]:
    return swarm_sim.simulate(scenario, POLICIES[policy], seed)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_distributes_an_artifact_and_the_next_one(policy: str) -> None:
    for one in figures(policy).values():
        assert one.last_over_bound is not None
        assert one.median_over_bound is not None
        assert one.last_over_bound >= one.median_over_bound >= 1.0, "nothing is faster than the bound"
        assert one.origin_copies >= 1.0
        assert one.cross_region_copies >= 1.0


def test_direct_costs_a_copy_per_node_and_a_relay_one_per_region() -> None:
    assert figures("direct")["small"].origin_copies == pytest.approx(8.0)
    relay = figures("relay")["small"]
    assert relay.origin_copies == pytest.approx(2.0)
    assert relay.cross_region_copies == pytest.approx(1.0)


def test_a_figure_is_repeatable() -> None:
    assert figures("ours", seed=3) == figures("ours", seed=3)


def test_half_behind_nat_leavers_and_malicious_ones_are_drawn_from_the_seed_and_counted_out() -> None:
    for name in ("nat_half", "churn_10", "malicious_10"):
        players = cast(SCENARIOS[name], 1)
        assert players == cast(SCENARIOS[name], 1)
        assert players != cast(SCENARIOS[name], 2)
    assert sum(spec.nat for spec in cast(SCENARIOS["nat_half"], 1).nodes) == 16
    assert len(cast(SCENARIOS["churn_10"], 1).counted) == len(cast(SCENARIOS["malicious_10"], 1).counted) == 29


def test_the_report_has_the_promised_scenarios_and_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {name for scenario in SCENARIOS.values() for name in scenario.goal} == set(NAMES.split())
    monkeypatch.setitem(SCENARIOS, "16x1g", replace(SCENARIOS["16x1g"], mebibytes=4))
    monkeypatch.setattr("sys.argv", ["swarm_sim", "--json", "--only", "16x1g", "--policy", "direct", "--seeds", "1"])
    swarm_sim.main()
    report = json.loads(capsys.readouterr().out)
    assert set(report["scenarios"]["16x1g"]["direct"]) == KEYS
