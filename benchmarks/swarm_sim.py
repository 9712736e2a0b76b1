"""`python -m benchmarks.swarm_sim [--json] [--only NAME] [--seeds N]`: how near the swarm comes to the physical bound.

A simulation (aurora_p2p.testing.network): the real exchange machines over modelled networks, artifacts of 256 MiB (64
MiB at 200 nodes, and where the bound is to be below a second) in segments of 256 KiB, produced at 512 MiB/s. The bound
is defined in benchmarks/swarm_sim_bound.py, the swarms in benchmarks/swarm_sim_scenarios.py, what rivals do and what
`_warm` means in benchmarks/swarm_sim_rivals.py. Each figure is the median over the seeds. Links are open before an
artifact is published; connections start slowly, as after a pause of seconds, but for `_warm`.

Who leaves does so between 10 % and 90 % of the bound, without a word, and is noticed a second later. Half of who is
malicious sends corrupt bytes, half accepts requests and sends nothing; `_next` is the artifact after that.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from aurora_p2p.testing.network import Network
from aurora_p2p.testing.node import Counts, Node
from aurora_p2p.testing.timeline import BudgetError
from aurora_p2p.types import ArtifactId
from benchmarks.swarm_sim_bound import Figures, lower_bound, medians
from benchmarks.swarm_sim_rivals import COLD, POLICIES, Policy
from benchmarks.swarm_sim_scenarios import SCENARIOS, Cast, Scenario, cast

SEGMENT = 256 * 1024
PAGE_SEGMENTS = 16
"""4 MiB of output are a page: what an encoder has ready at a time."""
SETTLE_SECONDS = 3.0
"""Before the first artifact, for links and rosters, and between two."""
NOTICED_SECONDS = 1.0
HORIZON_BOUNDS = 250.0
HORIZON_SECONDS = 30.0
EVENTS = 40_000_000
"""A run with more simulated events than that does not end."""
OURS_SEEDS = 3
WARM_SEEDS = 1
RIVAL_SEEDS = 1
"""As many as two cores run in a quarter of an hour; 200 nodes run once, and rivals there from cold windows only."""
LARGE = 100
"""Nodes."""
WINDOWS = {
    "NAME": "cold: connections start with ten packets, as with CUBIC after a pause",
    "NAME_warm": "connections start with their largest window, as with BBR after a pause",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swarm_sim", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), help="only this scenario (may be repeated)")
    parser.add_argument("--policy", action="append", choices=list(POLICIES), help="only this policy (may be repeated)")
    parser.add_argument(
        "--seeds", type=int, help=f"seeds of every run (default: {OURS_SEEDS}, {RIVAL_SEEDS} of rivals)"
    )
    parser.add_argument("--first-seed", type=int, default=1, metavar="N", help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: as many as cores)")
    options = parser.parse_args()
    runs = [
        (name, policy, seed)
        for name in options.only or SCENARIOS
        for policy in options.policy or default_policies(name)
        for seed in range(options.first_seed, options.first_seed + (options.seeds or seeds_of(name, policy)))
    ]
    report = summary(run_all(runs, options.jobs))
    print(json.dumps(report) if options.json else render(report))


def default_policies(name: str) -> list[str]:
    if SCENARIOS[name].nodes < LARGE:
        return list(POLICIES)
    return [*COLD, "ours_warm"]


def seeds_of(name: str, policy: str) -> int:
    if SCENARIOS[name].nodes >= LARGE:
        return 1
    return {"ours": OURS_SEEDS, "ours_warm": WARM_SEEDS}.get(policy, RIVAL_SEEDS)


Run = tuple[str, str, int]


def run_all(runs: Sequence[Run], jobs: int) -> list[tuple[Run, dict[str, Figures], float]]:
    """Every run's figures by artifact, and the seconds it took; progress on stderr."""
    done = []
    with ProcessPoolExecutor(jobs) as pool:
        for run, (figures, seconds) in zip(runs, pool.map(timed, runs), strict=True):
            name, policy, seed = run
            print(f"{name} {policy} seed {seed}: {seconds:.1f} s", *figures.values(), file=sys.stderr)
            done.append((run, figures, seconds))
    return done


def timed(run: Run) -> tuple[dict[str, Figures], float]:
    name, policy, seed = run
    gc.disable()  # a run makes few cycles; looking for them takes a tenth of its time
    start = perf_counter()
    figures = simulate(SCENARIOS[name], POLICIES[policy], seed)
    gc.collect()
    return figures, perf_counter() - start


def summary(done: Sequence[tuple[Run, dict[str, Figures], float]]) -> dict[str, Any]:
    scenarios: dict[str, dict[str, list[Figures]]] = {}
    for (_, policy, _), figures, _ in done:
        for name, one in figures.items():
            scenarios.setdefault(name, {}).setdefault(policy, []).append(one)
    of = {key: scenario for scenario in SCENARIOS.values() for key in scenario.goal}
    return {
        "simulated": True,
        "windows": WINDOWS,
        "artifact_bytes": {name: of[name].size for name in scenarios},
        "scenarios": {
            name: {policy: medians(runs) for policy, runs in policies.items()} for name, policies in scenarios.items()
        },
        "seeds": {name: {policy: len(runs) for policy, runs in rows.items()} for name, rows in scenarios.items()},
        "goals": {name: of[name].goal[name] for name in scenarios},
        "simulation_seconds": round(sum(seconds for _, _, seconds in done), 1),
    }


class Swarm:
    """One scenario's network under one policy."""

    def __init__(self, scenario: Scenario, policy: Policy, players: Cast, seed: int) -> None:
        self.scenario, self.players = scenario, players
        self.network = Network(seed, players.origin, players.topology, exact=False, mesh=False, machine=policy.machine)
        self.nodes = [self.network.add(spec, kind) for spec, kind in zip(players.nodes, players.kinds, strict=True)]
        self.counted = [self.nodes[index] for index in players.counted]
        self.bound = lower_bound(
            scenario.size,
            players.origin,
            [node.spec for node in self.counted],
            players.topology,
            production=scenario.production,
        )
        policy.wire(self.network)
        self.network.run(SETTLE_SECONDS)

    def distribute(self, seq: int) -> Figures:
        """Publish one artifact, and simulate until every node that counts has it."""
        network, scenario, before = self.network, self.scenario, total(self.everybody)
        sent, start = network.host.counts.sent_bytes, max(network.now, seq * SETTLE_SECONDS)
        network.at(start, lambda: None)
        network.run(start)
        artifact = network.publish(
            scenario.size, SEGMENT, seconds=scenario.production, page_segments=PAGE_SEGMENTS, seq=seq
        )
        for index, share in self.players.leaving.items():
            if self.nodes[index].alive:
                network.at(
                    start + share * self.bound, partial(network.kill, self.nodes[index], noticed_after=NOTICED_SECONDS)
                )
        missing = {node.peer for node in self.counted}

        def completed(node: Node, done: ArtifactId) -> None:
            if done == artifact and node.peer in missing:
                missing.discard(node.peer)
                if not missing:
                    network.timeline.halt()

        network.completed = completed
        try:
            network.run(start + HORIZON_BOUNDS * self.bound + HORIZON_SECONDS, budget=EVENTS)
        except BudgetError as error:
            print(error, file=sys.stderr)
        after = total(self.everybody)
        return self._figures(artifact, start, (before, after), network.host.counts.sent_bytes - sent)

    @property
    def everybody(self) -> list[Node]:
        return [self.network.host, *self.nodes]

    def _figures(self, artifact: ArtifactId, start: float, counts: tuple[Counts, Counts], sent: int) -> Figures:
        before, after = counts
        times = sorted(node.done.get(artifact, float("inf")) - start for node in self.counted)
        arrived = after.arrived - before.arrived
        repeated = (after.wasted - after.bad) - (before.wasted - before.bad)
        return Figures(
            finite(times[-1] / self.bound),
            finite(median(times) / self.bound),
            sent / self.scenario.size,
            (after.across - before.across) / (self.scenario.size // SEGMENT),
            repeated / max(arrived, 1),
        )


def simulate(scenario: Scenario, policy: Policy, seed: int) -> dict[str, Figures]:
    """The figures of each artifact of a scenario's run."""
    players = cast(scenario, seed, slow_start=policy.slow_start, lanes=policy.lanes)
    swarm = Swarm(scenario, policy, players, seed)
    return {name: swarm.distribute(seq) for seq, name in enumerate(scenario.goal, 1)}


def total(nodes: Sequence[Node]) -> Counts:
    """Sums of what figures are made of."""
    counts = Counts()
    for node in nodes:
        counts.arrived += node.counts.arrived
        counts.across += node.counts.across
        counts.bad += node.counts.bad
        counts.wasted += node.counts.wasted
    return counts


def finite(value: float) -> float | None:
    return value if value < float("inf") else None


def render(report: dict[str, Any]) -> str:
    """A table: last / median over the bound, origin and cross-region copies, duplicates."""
    lines = [f"{'scenario':20}{'policy':12}{'goal':>6}{'last':>8}{'median':>8}{'origin':>8}{'across':>8}{'dup %':>7}"]
    for name, policies in report["scenarios"].items():
        for policy, row in policies.items():
            goal = f"{report['goals'][name]:.2f}" if policy.startswith("ours") else ""
            last, middle = (f"{row[key]:.2f}" if row[key] is not None else "never" for key in TIMES)
            lines.append(
                f"{name:20}{policy:12}{goal:>6}{last:>8}{middle:>8}{row['origin_copies']:8.2f}"
                f"{row['cross_region_copies']:8.2f}{100 * row['duplicate_ratio']:7.2f}"
            )
    return "\n".join([*lines, f"simulated in {report['simulation_seconds']:.0f} s"])


TIMES = ("last_over_bound", "median_over_bound")


if __name__ == "__main__":
    main()
