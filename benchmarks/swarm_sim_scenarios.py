"""The swarms that benchmarks.swarm_sim simulates, by name: who is there, how fast, where, and what goes wrong.

Every scenario draws its nodes from its seed: round trips inside a region are 2.5 to 7.5 ms, between two regions 72 to
168 ms (120 ms in the middle); who is behind NAT, leaves or misbehaves is drawn too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from aurora_p2p.testing.adversaries import Corrupter, Staller
from aurora_p2p.testing.node import Node
from aurora_p2p.testing.topology import NodeSpec, Topology

GBIT = 1e9 / 8
SLOWEST, FASTEST = 0.25, 10.0
NEAR_SECONDS = (0.0025, 0.0075)
FAR_SECONDS = 0.12
FAR_SPREAD = (0.6, 1.4)
LANES = 8
PRODUCTION_RATE = 512 * 2**20
"""Bytes/s that leave the encoder."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """gbit: of every node, up and down; None draws each from 0.25 to 10 (log-uniform). Shares are of the nodes.

    mebibytes: of each artifact, produced at PRODUCTION_RATE.
    """

    nodes: int
    regions: int = 1
    gbit: float | None = 1.0
    origin_gbit: float = 1.0
    nat: float = 0.0
    leaving: float = 0.0
    malicious: float = 0.0
    mebibytes: int = 256
    goal: Mapping[str, float] = field(default_factory=dict)
    """last_over_bound to reach, by artifact of the run."""

    @property
    def size(self) -> int:
        return self.mebibytes * 2**20

    @property
    def production(self) -> float:
        """Seconds from the first byte of an artifact to the last."""
        return self.size / PRODUCTION_RATE


SCENARIOS = {
    "16x1g": Scenario(16, goal={"16x1g": 1.10}),
    "4x8": Scenario(32, 4, goal={"4x8": 1.10}),
    "heterogeneous": Scenario(32, 4, gbit=None, goal={"heterogeneous": 1.05}),
    "origin_bound": Scenario(32, 4, origin_gbit=0.25, goal={"origin_bound": 1.05}),
    "nat_half": Scenario(32, 4, nat=0.5, goal={"nat_half": 1.2}),
    "churn_10": Scenario(32, 4, leaving=0.1, goal={"churn_10": 1.35}),
    "malicious_10": Scenario(32, 4, malicious=0.1, goal={"malicious_10": 1.6, "malicious_10_next": 1.2}),
    "nodes_200": Scenario(200, 4, mebibytes=64, goal={"nodes_200": 1.3}),
    "subsecond": Scenario(32, 4, gbit=10.0, origin_gbit=10.0, mebibytes=64, goal={"subsecond": 1.7}),
}
"""Each key of `goal` is one artifact published in the run, in this order."""


@dataclass(frozen=True, slots=True)
class Cast:
    """One scenario with its chances drawn."""

    topology: Topology
    origin: NodeSpec
    nodes: tuple[NodeSpec, ...]
    kinds: tuple[type[Node], ...]
    """Node unless it misbehaves."""
    leaving: Mapping[int, float]
    """Position of a node -> when it leaves, as a share of the bound."""

    @property
    def counted(self) -> tuple[int, ...]:
        """Positions of honest nodes that stay."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind is Node and i not in self.leaving)


def cast(scenario: Scenario, seed: int, *, slow_start: bool = True, lanes: int = LANES) -> Cast:
    """Who plays, with this seed. slow_start, lanes: as in Topology."""
    rng = Random(f"cast {seed}")
    topology = Topology(rtts=_rtts(scenario.regions, rng), lanes=lanes, slow_start=slow_start)
    nodes = [_spec(scenario, index % scenario.regions, rng) for index in range(scenario.nodes)]
    order = rng.sample(range(scenario.nodes), scenario.nodes)
    for index in order[: round(scenario.nat * scenario.nodes)]:
        nodes[index] = replace(nodes[index], nat=True)
    kinds: list[type[Node]] = [Node] * scenario.nodes
    bad, gone = round(scenario.malicious * scenario.nodes), round(scenario.leaving * scenario.nodes)
    for number, index in enumerate(order[:bad]):
        kinds[index] = Staller if number % 2 else Corrupter
    leaving = {index: rng.uniform(0.1, 0.9) for index in order[bad : bad + gone]}
    origin = NodeSpec(scenario.origin_gbit * GBIT, scenario.origin_gbit * GBIT, _near(rng))
    return Cast(topology, origin, tuple(nodes), tuple(kinds), leaving)


def _spec(scenario: Scenario, region: int, rng: Random) -> NodeSpec:
    gbit = scenario.gbit
    if gbit is None:
        gbit = SLOWEST * (FASTEST / SLOWEST) ** rng.random()
    return NodeSpec(gbit * GBIT, gbit * GBIT, _near(rng), region)


def _near(rng: Random) -> float:
    return rng.uniform(*NEAR_SECONDS)


def _rtts(regions: int, rng: Random) -> dict[tuple[int, int], float]:
    rtts = {}
    for a in range(regions):
        for b in range(a):
            rtts[a, b] = rtts[b, a] = FAR_SECONDS * rng.uniform(*FAR_SPREAD)
    return rtts
