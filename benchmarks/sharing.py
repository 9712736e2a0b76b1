"""`python -m benchmarks.sharing [--json] [--seeds N] [--only MIX]`: step time over that of an ideal split.

A simulation in virtual time (benchmarks/sharing_sim.py) with the real work pool and signed results: 1,024 samples a
step, 100 to 500 tokens each, one step after the other. Two steps measure the nodes, the next ones count.

    ideal     the step's tokens over what all machines together make, however finely they had to be cut, with no network
    uniform   each machine gets the same number of samples at the start; what a dead one left is noticed when the others
              are done, and split evenly again. No network either
    ours      what the pool did

    2x, 3x    four machines; the fastest is 2 and 3 times the slowest
    drift     the same as 2x, every machine's speed wanders within 0.5 and 1.5; in the last step one of the slow ones
              becomes 3 times as fast and one of the fast ones half as fast
    death     the same as 2x, and one of the fast machines dies in the middle of a lease, without a word
    a100_l40  two A100 and two L40: 2,500 tokens/s, and as many as 864 to 2,039 GB/s of memory (the vendor's figures)
              make of it, for decoding is bound by reading weights

Each figure is the median over seeds and counted steps; `worst` is the largest one, `cold` the first step, in which no
machine's speed is known. `faster_than_uniform` is the share of the uniform split's time that is saved.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from aurora_p2p.crypto.identity import Identity
from benchmarks.sharing_sim import (
    ROUND_TRIP_SECONDS,
    STEP_LIMIT_SECONDS,
    Machine,
    Speed,
    Swarm,
    seconds_for,
    step_tokens,
)

SEEDS = 5
WARM_STEPS = 2
"""Until every machine's speed is known well."""
A100 = 2500.0
L40 = A100 * 864 / 2039
WANDER_SECONDS = 4.0
"""From one speed of a wandering machine to the next."""


@dataclass(frozen=True, slots=True)
class Mix:
    """speeds: tokens/s. steps: how many count. drifts, dies: what happens, in the last of them."""

    speeds: tuple[float, ...]
    steps: int = 2
    drifts: bool = False
    dies: bool = False


MIXES = {
    "2x": Mix((5000.0, 5000.0, 2500.0, 2500.0)),
    "3x": Mix((6000.0, 4000.0, 3000.0, 2000.0)),
    "drift": Mix((5000.0, 5000.0, 2500.0, 2500.0), drifts=True),
    "death": Mix((5000.0, 5000.0, 2500.0, 2500.0), steps=1, dies=True),
    "a100_l40": Mix((A100, A100, L40, L40)),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one step."""

    ours_over_ideal: float
    uniform_over_ideal: float


# ---- machines


@dataclass(slots=True)
class Script:
    """What happens to the machines' speeds; `turn` is set when the last step begins."""

    mix: Mix
    seed: int
    turn: float = math.inf

    def speed(self, index: int, now: float) -> float:
        rate = self.mix.speeds[index]
        if self.mix.drifts:
            rate *= self._wandering(index, now)
            if now >= self.turn:
                rate *= {0: 0.5, 2: 3.0}.get(index, 1.0)
        return 0.0 if self.mix.dies and index == 0 and now >= self.turn else rate

    def _wandering(self, index: int, now: float) -> float:
        number, part = divmod(now / WANDER_SECONDS, 1)
        before, after = (
            random.Random(f"{self.seed}/{index}/{int(number) + ahead}").uniform(0.5, 1.5) for ahead in (0, 1)
        )
        return before + (after - before) * part


def machines(script: Script) -> list[Machine]:
    rng = random.Random(script.seed)
    return [
        Machine(Identity(bytes([index + 1]) * 32), partial(script.speed, index), rng.uniform(*ROUND_TRIP_SECONDS) / 2)
        for index in range(len(script.mix.speeds))
    ]


# ---- a run


def simulate(mix: Mix, seed: int) -> list[Figures]:
    """Figures of the first step, and of those that count."""
    script = Script(mix, seed)
    swarm = Swarm(seed, machines(script))
    last, figures = WARM_STEPS + mix.steps - 1, list[Figures]()
    for step in range(last + 1):
        started, lengths = swarm.now, step_tokens(seed, step)
        speeds = [machine.speed for machine in swarm.machines]
        if step == last:
            part = random.Random(f"{seed}/turn").uniform(0.3, 0.7)
            script.turn = started + part * ideal_seconds(lengths, speeds, started)
        ideal, uniform = ideal_seconds(lengths, speeds, started), uniform_seconds(lengths, speeds, started)
        figures.append(Figures(swarm.work_off(step) / ideal, uniform / ideal))
    return [figures[0], *figures[WARM_STEPS:]]


def ideal_seconds(lengths: Sequence[int], speeds: Sequence[Speed], start: float) -> float:
    """All machines end at the same moment, and nothing is lost."""
    return seconds_for(sum(lengths), lambda now: sum(speed(now) for speed in speeds), start)


def uniform_seconds(lengths: Sequence[int], speeds: Sequence[Speed], start: float) -> float:
    """The same number of samples for each machine, then again of those that were not done."""
    left, now, alive = list(lengths), start, list(speeds)
    while left:
        undone, ends = list[int](), list[float]()
        for index, speed in enumerate(alive):
            end = now
            for place, length in enumerate(mine := left[index :: len(alive)]):
                seconds = seconds_for(length, speed, end)
                if seconds >= STEP_LIMIT_SECONDS:
                    undone += mine[place:]
                    break
                end += seconds
            ends.append(end)
        now, left = max(ends), undone
        alive = [speed for speed in alive if speed(now) > 0]
    return now - start


def summary(runs: Sequence[Sequence[Figures]]) -> dict[str, float]:
    counted = [figures for run in runs for figures in run[1:]]
    ours, uniform = (
        median(getattr(one, name) for one in counted) for name in ("ours_over_ideal", "uniform_over_ideal")
    )
    return {
        "ours_over_ideal": ours,
        "uniform_over_ideal": uniform,
        "faster_than_uniform": 1 - ours / uniform,
        "worst_over_ideal": max(one.ours_over_ideal for one in counted),
        "cold_over_ideal": median(run[0].ours_over_ideal for run in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"runs of each mix (default: {SEEDS})")
    parser.add_argument("--only", action="append", choices=list(MIXES), help="only this mix (may be repeated)")
    options = parser.parse_args()
    print(json.dumps(measure(options.only or list(MIXES), options.seeds), indent=None if options.json else 2))


def measure(names: Sequence[str], seeds: int) -> dict[str, Any]:
    runs = [(name, seed) for name in names for seed in range(1, seeds + 1)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(simulate, (MIXES[name] for name, _ in runs), (seed for _, seed in runs)))
    mixes = {
        name: summary([figures for (mix, _), figures in zip(runs, done, strict=True) if mix == name]) for name in names
    }
    return {"simulated": True, "seeds": seeds, "mixes": mixes}


if __name__ == "__main__":
    main()
