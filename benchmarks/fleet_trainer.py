"""The fleet's trainer: publishes versions and takes rollouts for ever; may be killed anywhere and started again.

    python -m benchmarks.fleet_trainer --host HOST_HOME [--pause SECONDS] [--json] [--home DIR]

What the swarm sees is what any training loop shows it; what is trained is a formula (fleet_model.py), so it keeps no
state of its own: the host's newest publication says where it stands. A host that goes away is waited for. Two JSON
lines per step: "taken" with whose samples it got, before anything is made of them, and "step" when the next version
is out. Loads no torch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from aurora_p2p.delta.digest import full_digest
from aurora_p2p.errors import AuroraError
from aurora_p2p.local.cli import run_cli
from aurora_p2p.local.faults import reach
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.train.publish import Publisher
from aurora_p2p.types import Step, Version
from aurora_p2p.wire.control import Sampling
from aurora_p2p.wire.trainer import Rollouts
from benchmarks.fleet_model import CONFIG, SPECS, VOCABULARY, weights_at

PROMPTS, GROUP, MAX_TOKENS = 8, 4, 16
AHEAD = 2
"""Steps whose prompts the swarm has: one-step asynchronous."""
RETRY_SECONDS = 0.1


def say(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def prompts_of(step: int) -> list[tuple[int, ...]]:
    """The same ones each time the step is submitted."""
    rng = random.Random(step)
    return [tuple(rng.randrange(256) for _ in range(5)) for _ in range(PROMPTS)]


def submit(client: SwarmClient, step: int) -> None:
    client.submit(Step(step), prompts_of(step), GROUP, Sampling(1.0, MAX_TOKENS, VOCABULARY, ()))


def enter(client: SwarmClient) -> tuple[Publisher, int]:
    """Go on from what the host holds; an empty host gets version 0."""
    publisher, version = Publisher(client, CONFIG), client.attach().version
    if version < 0:
        publisher.publish(SPECS, weights_at(0), Version(0))
        say("published", version=0, digest=full_digest(SPECS, weights_at(0)).hex())
        return publisher, 0
    if not publisher.adopt(SPECS, weights_at(version)):
        say("foreign", version=version)
    return publisher, version


def train(client: SwarmClient, pause: float) -> None:
    """Steps until the host goes away (UnreachableError) or refuses."""
    publisher, first = enter(client)
    say("entered", version=first)
    for step in range(first, first + AHEAD):
        submit(client, step)
    for step in itertools.count(first):
        rollouts = client.rollouts(Step(step))
        report(rollouts)
        submit(client, step + AHEAD)
        time.sleep(pause)
        reach("step.trained")
        version, bits = Version(step + 1), weights_at(step + 1)
        publication = publisher.publish(SPECS, bits, version)  # the host makes the snapshots
        say("step", step=step, version=version, digest=publication.digest.hex())


def report(rollouts: Rollouts) -> None:
    samples = [[sample.prompt, sample.sample, sample.node] for sample in rollouts.samples]
    lags = [rollouts.step - sample.version for sample in rollouts.samples]
    say("taken", step=rollouts.step, samples=samples, min_lag=min(lags), max_lag=max(lags))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_trainer", description=__doc__)
    parser.add_argument("--host", type=Path, required=True, help="the host's home")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step trains")
    parser.add_argument("--home", type=Path, help="not used: it keeps nothing")
    parser.add_argument("--json", action="store_true", help="as it always does")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        try:
            with SwarmClient.open(options.host) as client:
                train(client, options.pause)
        except AuroraError as error:
            say("waiting", why=str(error))
            time.sleep(RETRY_SECONDS)


if __name__ == "__main__":
    run_cli(main)
