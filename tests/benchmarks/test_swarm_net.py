"""What benchmarks.swarm_net compares with: the bound of each network, and the trees of the static plans."""

from __future__ import annotations

import pytest

from benchmarks.swarm_net_kills import victim
from benchmarks.swarm_net_plans import PLANS, children_of
from benchmarks.swarm_net_scenarios import SCENARIOS, Scenario

SIZE = 60_000_000


@pytest.mark.parametrize(
    ("name", "megabits_per_second"),
    [
        ("h8", 50),  # the origin's upload, and everybody's download
        ("het8", 50),  # the slowest node's download
        ("reg44", 50),  # the line between the regions
    ],
)
def test_the_bound_is_the_tightest_of_its_reasons(name: str, megabits_per_second: float) -> None:
    assert SCENARIOS[name].bound(SIZE, 1.0) == pytest.approx(SIZE * 8e-6 / megabits_per_second)
    assert SCENARIOS[name].bound(SIZE, 0.5) == pytest.approx(2 * SCENARIOS[name].bound(SIZE, 1.0))


def test_uploads_together_bound_a_swarm_of_slow_uploaders() -> None:
    lines = SCENARIOS["h8"].lines
    slow = Scenario((lines[0], *(type(line)(5, 50) for line in lines[1:])))
    assert slow.bound(SIZE, 1.0) == pytest.approx(8 * SIZE * 8e-6 / 90)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_is_a_tree_that_reaches_each_node_once(name: str, plan: str) -> None:
    tree = children_of(plan, SCENARIOS[name].lines)
    assert sorted(child for children in tree.values() for child in children) == list(SCENARIOS[name].nodes)
    reached, todo = set(), [0]
    while todo:
        parent = todo.pop()
        reached.add(parent)
        todo += tree.get(parent, [])
    assert reached == {0, *SCENARIOS[name].nodes}


def test_a_chain_goes_from_fast_to_slow_and_crosses_between_regions_once() -> None:
    tree = children_of("chain", SCENARIOS["het8"].lines)
    assert tree[0] == [8]
    assert tree[2] == [1]
    lines = SCENARIOS["reg44"].lines
    chain = children_of("chain", lines)
    crossings = [1 for parent, (child,) in chain.items() if lines[parent].region != lines[child].region]
    assert len(crossings) == 1


def test_the_victim_is_the_node_that_plays_the_role_in_this_transfer() -> None:
    before = {1: {"pushes": {"gateway": 90}}, 2: {"pushes": {}}, 3: {"pushes": {}}}
    now = {1: {"pushes": {"gateway": 91}}, 2: {"pushes": {"gateway": 5}}, 3: {"pushes": {"first": 7, "pulled": 9}}}
    assert [victim(role, now, before) for role in ("gateway", "first_holder", "plain")] == [2, 3, 1]
