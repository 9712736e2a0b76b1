"""A training job as a process of its own, that may be killed at any time and started again.

    python -m aurora_p2p.train.process HOST_HOME --home FOLDER --checkpoint DIR --until VERSION --json

It goes on from what it saved in FOLDER (save.py), or else from the checkpoint, and takes optimizer steps until the
swarm's version is VERSION. One event per line: entered, step, finished. A host that is away, or has no room, is waited
for. The demo under faults and the end-to-end tests run this; a training framework has a loop of its own around the same
calls.
"""

from __future__ import annotations

import argparse
import pkgutil
from collections.abc import Sequence
from pathlib import Path

import torch

from aurora_p2p.engine.model import read_checkpoint
from aurora_p2p.local.cli import run_cli
from aurora_p2p.local.config import make_home
from aurora_p2p.local.output import Output
from aurora_p2p.train.evaluate import Weights
from aurora_p2p.train.loop import AsyncRun, GrpoTrainer, RunOptions, StepRecord, TrainOptions
from aurora_p2p.train.patience import open_patiently
from aurora_p2p.train.rewards import RewardChild
from aurora_p2p.train.save import resume_trainer
from aurora_p2p.train.tasks import Task

STATE = "trainer.safetensors"
"""In the job's folder: what it resumes from."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m aurora_p2p.train.process", description=__doc__)
    top.add_argument("host", type=Path, help="home folder of the swarm host")
    top.add_argument("--home", type=Path, required=True, help="this job's folder")
    top.add_argument("--checkpoint", type=Path, required=True, help="version 0: config.json and safetensors")
    top.add_argument("--until", type=int, required=True, help="version to stop at")
    top.add_argument("--task", default="aurora_p2p.train.tasks:SORT_DIGITS", help="import path, package.module:NAME")
    top.add_argument("--prompts", type=int, default=32, help="prompts per step")
    top.add_argument("--group", type=int, default=8, help="samples per prompt")
    top.add_argument("--seed", type=int, default=0, help="seed of the prompts")
    top.add_argument("--lr", type=float, default=1e-2, help="AdamW's learning rate")
    top.add_argument("--eps", type=float, default=0.1, help="AdamW's epsilon")
    top.add_argument("--save-every", type=int, default=1, help="versions from one save to the next")
    top.add_argument("--json", action="store_true", help="one JSON object per event on stdout")
    return top


def train(options: argparse.Namespace) -> None:
    """Train until the version that was asked for. Raises AuroraError."""
    torch.set_num_threads(1)
    make_home(options.home)
    output = Output(as_json=options.json)
    task: Task = pkgutil.resolve_name(options.task)
    start = Weights(*read_checkpoint(options.checkpoint))
    trainer = GrpoTrainer(start.model(), start.config, TrainOptions(lr=options.lr, eps=options.eps))
    saved = resume_trainer(options.home / STATE, trainer)
    settings = RunOptions(
        prompts=options.prompts,
        group=options.group,
        seed=options.seed,
        save=options.home / STATE,
        save_every=options.save_every,
    )
    with open_patiently(options.host) as client, RewardChild(task) as rewards:
        run = AsyncRun(client, task, trainer, rewards.score, settings)
        version = run.enter()
        output.event("entered", f"the swarm holds version {version}", version=version, saved=saved)
        for record in run.steps(max(options.until - version, 0)):
            _show(output, record)
        output.event("finished", f"version {options.until} is published", version=options.until)


def _show(output: Output, record: StepRecord) -> None:
    publication = record.publication
    output.event(
        "step",
        f"step {record.step}: reward {record.report.reward:.2f}, version {publication.version} as a {publication.kind}",
        step=record.step,
        reward=record.report.reward,
        version=publication.version,
        seq=publication.seq,
        kind=publication.kind,
        digest=publication.digest.hex(),
        tokens=record.tokens,
        max_lag=record.max_lag,
        waited=record.wait_seconds,
    )


def main(words: Sequence[str] | None = None) -> None:
    """Entry point."""
    run_cli(lambda: train(parser().parse_args(words)))


if __name__ == "__main__":
    main()
