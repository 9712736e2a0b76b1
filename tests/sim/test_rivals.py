"""Every policy of benchmarks.swarm_sim on a swarm small enough for a test."""

from __future__ import annotations

import json

import pytest

from benchmarks.swarm_sim import WINDOWS, simulate, summary
from benchmarks.swarm_sim_bound import Figures
from benchmarks.swarm_sim_rivals import COLD, POLICIES
from benchmarks.swarm_sim_scenarios import SCENARIOS, Scenario

SMALL = Scenario(8, 2, mebibytes=4, goal={"first": 2.0, "next": 2.0})
HOSTILE = Scenario(8, 2, malicious=0.25, mebibytes=4, goal=SMALL.goal)


def figures(scenario: Scenario, policy: str) -> dict[str, Figures]:
    return simulate(scenario, POLICIES[policy], seed=1)


@pytest.mark.parametrize("policy", COLD)
def test_each_policy_brings_two_artifacts_to_every_node_and_none_is_faster_than_the_bound(policy: str) -> None:
    for one in figures(SMALL, policy).values():
        assert one.last_over_bound is not None
        assert one.median_over_bound is not None
        assert one.last_over_bound >= one.median_over_bound >= 0.9, "a near node may be ahead of the farthest one"
        assert one.origin_copies >= 1.0
        assert one.cross_region_copies >= 1.0


@pytest.mark.parametrize("policy", ["ours", "bittorrent", "superseed"])
def test_who_corrupts_or_stalls_ends_no_policy_that_has_a_choice(policy: str) -> None:
    for one in figures(HOSTILE, policy).values():
        assert one.last_over_bound is not None


def test_windows_that_were_kept_are_never_slower() -> None:
    for policy in COLD:
        cold, warm = figures(SMALL, policy)["first"], figures(SMALL, f"{policy}_warm")["first"]
        assert warm.median_over_bound is not None
        assert cold.median_over_bound is not None
        assert warm.median_over_bound <= 1.01 * cold.median_over_bound


def test_direct_sends_as_many_copies_as_there_are_nodes_and_a_relay_one_per_region() -> None:
    assert figures(SMALL, "direct")["first"].origin_copies == pytest.approx(8)
    assert figures(SMALL, "relay")["first"].origin_copies == pytest.approx(2)


def test_the_report_says_that_it_is_simulated_how_large_artifacts_are_and_how_many_seeds_there_were() -> None:
    one = Figures(1.1, 1.0, 1.0, 3.0, 0.0)
    report = summary([(("malicious_10", "ours", 1), dict.fromkeys(SCENARIOS["malicious_10"].goal, one), 1.0)])
    assert json.loads(json.dumps(report)) == report
    assert report["simulated"] is True
    assert report["windows"] == WINDOWS
    assert report["artifact_bytes"] == {"malicious_10": 2**28, "malicious_10_next": 2**28}
    assert report["seeds"]["malicious_10_next"] == {"ours": 1}
    assert report["scenarios"]["malicious_10"]["ours"]["last_over_bound"] == 1.1
