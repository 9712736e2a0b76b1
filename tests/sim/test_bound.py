"""The bound and the rivals of benchmarks.swarm_sim, on swarms small enough for a test."""

from __future__ import annotations

import pytest

from aurora_p2p.testing.topology import NodeSpec, Topology
from benchmarks.swarm_sim_bound import Figures, lower_bound, medians

NOWHERE = Topology()


def spec(rate: float = 1.0, region: int = 0) -> NodeSpec:
    return NodeSpec(rate, rate, 0.0, region)


def test_the_bound_is_the_origins_uplink_the_slowest_downlink_or_all_uplinks_together() -> None:
    assert lower_bound(10, spec(0.5), [spec(), spec()], NOWHERE) == 20
    assert lower_bound(10, spec(5), [spec(5), spec(0.1)], NOWHERE) == 100
    nodes = [NodeSpec(0.1, 10.0, 0.0) for _ in range(10)]
    assert lower_bound(10, spec(1), nodes, NOWHERE) == pytest.approx(10 * 10 / 2)


def test_the_bound_counts_cuts_between_regions_production_and_the_way() -> None:
    nodes = [spec(10), spec(10, 1)]
    assert lower_bound(10, spec(10), nodes, Topology(cuts={(0, 1): 0.1})) == pytest.approx(100)
    assert lower_bound(10, spec(10), nodes, Topology(egress={0: 0.5})) == pytest.approx(20)
    assert lower_bound(10, spec(10), nodes, NOWHERE, production=7) == 7
    assert lower_bound(10, spec(10), nodes, Topology(rtts={(0, 1): 4.0}), production=7) == 9


def test_a_run_that_did_not_complete_counts_as_longer_than_any() -> None:
    never, good = Figures(None, 1.0, 1.0, 0.0, 0.0), Figures(1.2, 1.1, 1.0, 0.0, 0.0)
    assert medians([never, never, good])["last_over_bound"] is None
    assert medians([never, good, good])["last_over_bound"] == 1.2
