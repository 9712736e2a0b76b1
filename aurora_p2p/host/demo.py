"""`aurora-host demo`: the whole loop on this machine, with the real programs, measured.

A bootstrap, a swarm host and N nodes run as separate processes on loopback; this process is the trainer and speaks to
the host as any training loop would. Phases, all in one swarm:

    calibrate   real steps with a learning rate of 0: measures G, the generation time of a step, and is the control
    learn       GRPO at --lr, versions travel as deltas
    sparse      plain AdamW at 1e-6: the regime of large-model RL, 1 % of the weights change
    full        the learning phase again from the same weights, every version broadcast whole (--baseline full)

After calibration host and nodes are capped, up and down, at full_bytes / (2.8 G): a full copy then takes 2.8 generation
windows, the proportion of a 16 GB model on 1 Gbit/s to a 45 s window. Segments are small, because the deltas are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aurora_p2p.errors import DigestMismatch
from aurora_p2p.host.demo_report import Demo, PhaseFigures, Statuses, render_table, report_of
from aurora_p2p.host.programs import Program, Programs, run_once, wait_until
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.config import make_home

if TYPE_CHECKING:
    from aurora_p2p.train.loop import AsyncRun, RunOptions

SEGMENT_BYTES = 1024
"""A delta of this small model is tens of KB: it makes tens of segments."""
COPY_WINDOWS = 2.8
"""Generation windows that a full copy takes under the caps: 128 s against 45 s (AuroraRL, arXiv 2602.11456)."""
MIN_GENERATION_SECONDS = 2.0
ENOUGH_GENERATION_SECONDS = 2.4
"""A longer window only makes the demo longer."""
FIRST_PROMPTS = 96
GROUP = 8
MIN_PROMPTS, MAX_PROMPTS = 32, 1024
CALIBRATION_STEPS = 4
MOST_ATTEMPTS = 3
"""Rounds after which a window that is too long is accepted: it is measured on a noisy machine."""
SPARSE_STEPS = 3
EVALUATION_SEEDS = tuple(range(5))
START_SECONDS = 120.0
NODE_BATCH = 16
"""Sequences that a demo node generates at once: small, so that a lease is short."""


def run_demo(home: Path, options: argparse.Namespace) -> None:
    """Run every phase, print the table, write --report. Raises AuroraError."""
    make_home(home)
    started = boottime()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the programs are stopped on the way out
    with tempfile.TemporaryDirectory(prefix="aurora-demo-") as folder, Programs(Path(folder)) as programs:
        print(f"starting a bootstrap, a host and {options.nodes} nodes (logs in {folder} while it runs)", flush=True)
        swarm = _start(programs, home, options)
        demo = swarm.run_phases(options)
    demo = replace(demo, wall_seconds=boottime() - started)
    report = report_of(demo)
    print(render_table(report))
    if options.report:
        options.report.write_text(json.dumps(report, indent=2) + "\n")
        print(f"report: {options.report}")


def _start(programs: Programs, home: Path, options: argparse.Namespace) -> DemoSwarm:
    """Start the programs; the slow imports of this process run meanwhile."""
    bootstrap = programs.start("bootstrap", ["aurora-bootstrap", "serve", "--listen", "127.0.0.1:0"])
    folder = _pretrained(home, options.seed)
    address = bootstrap.wait_for("listening", START_SECONDS)["addresses"][0]
    loopback = ["--listen", "/ip4/127.0.0.1/tcp/0", "--bulk-listen", "127.0.0.1:0", "--local", "127.0.0.0/8"]
    size = ["--segment-bytes", str(SEGMENT_BYTES), "--max-lease-samples", str(2 * NODE_BATCH)]
    host_home = programs.folder / "host"
    run_once(["aurora-host", "init", "--home", str(host_home), "--bootstrap", address, *loopback, *size])
    host = programs.start("host", ["aurora-host", "run"])
    ticket = host.wait_for("ready", START_SECONDS)["ticket"]
    words = ["aurora-node", "join", ticket, "--threads", "1", "--max-batch", str(NODE_BATCH), "--audit-every", "1"]
    nodes = [programs.start(f"node{number}", [*words, *loopback]) for number in range(options.nodes)]
    return DemoSwarm(folder, host, nodes, options.seed)


def _pretrained(home: Path, seed: int) -> Path:
    import torch

    from aurora_p2p.train.pretrain import WarmupProgress, pretrained

    torch.set_num_threads(1)

    def show(progress: WarmupProgress) -> None:
        if progress.accuracy is not None:
            print(f"warm-up step {progress.step}: sampled accuracy {progress.accuracy:.2f}", flush=True)

    return pretrained(home / "cache", seed, on_progress=show)


@dataclass(frozen=True, slots=True)
class DemoSwarm:
    """The running programs and the checkpoint that they start from."""

    checkpoint: Path
    host: Program
    nodes: list[Program]
    seed: int

    def run_phases(self, options: argparse.Namespace) -> Demo:
        """All phases, in order."""
        from aurora_p2p.engine.model import read_checkpoint
        from aurora_p2p.train.client import SwarmClient
        from aurora_p2p.train.evaluate import Weights, sampled_accuracy
        from aurora_p2p.train.loop import LEARN, SPARSE, AsyncRun, GrpoTrainer, RunOptions
        from aurora_p2p.train.rewards import RewardChild
        from aurora_p2p.train.tasks import HELD_OUT, SORT_DIGITS

        start = Weights(*read_checkpoint(self.checkpoint))
        learn = replace(LEARN, lr=options.lr)
        with SwarmClient.open(self.host.home) as client, RewardChild(SORT_DIGITS) as rewards:

            def accuracy(weights: Weights) -> tuple[float, float]:
                measured = sampled_accuracy(
                    weights, SORT_DIGITS, SORT_DIGITS.held_out(HELD_OUT), EVALUATION_SEEDS, rewards.score
                )
                return measured.mean, measured.sd

            def run(trainer: GrpoTrainer, settings: RunOptions) -> AsyncRun:
                return AsyncRun(client, SORT_DIGITS, trainer, rewards.score, settings)

            settings = RunOptions(prompts=FIRST_PROMPTS, group=GROUP, seed=self.seed)
            control = GrpoTrainer(start.model(), start.config, replace(learn, lr=0.0))
            settings, seconds = self._calibrate(lambda chosen: run(control, chosen), settings)
            full_bytes = sum(spec.nbytes for spec in start.specs)
            self._cap(full_bytes / (COPY_WINDOWS * seconds))
            before = accuracy(start)
            trainer = GrpoTrainer(start.model(), start.config, learn)
            learned = self._phase("learn", run(trainer, settings), options.steps)
            after = accuracy(Weights.of(start.config, trainer.model))
            control_after = accuracy(Weights.of(start.config, control.model))
            sparse = self._phase(
                "sparse", run(GrpoTrainer(trainer.model, start.config, SPARSE), settings), SPARSE_STEPS
            )
            full = None
            if options.baseline == "full":
                baseline = GrpoTrainer(start.model(), start.config, learn)
                full = self._phase("full", run(baseline, replace(settings, full=True)), options.steps)
        return Demo(
            steps=options.steps,
            nodes=len(self.nodes),
            lr=options.lr,
            seed=options.seed,
            prompts=settings.prompts,
            generation_seconds=seconds,
            cap_bytes_per_second=full_bytes / (COPY_WINDOWS * seconds),
            full_bytes=full_bytes,
            before=before[0],
            after=after[0],
            control_after=control_after[0],
            control_sd=control_after[1],
            learn=learned,
            sparse=sparse,
            full=full,
            final=self._statuses(),
            wall_seconds=0.0,
        )

    def _calibrate(self, run: Callable[[RunOptions], AsyncRun], settings: RunOptions) -> tuple[RunOptions, float]:
        """Prompts per step such that a step takes at least MIN_GENERATION_SECONDS to generate, and that time."""
        for attempt in itertools.count(1):
            records = list(run(settings).steps(CALIBRATION_STEPS))
            if any(record.publication.kind == "delta" and record.publication.changed for record in records):
                raise DigestMismatch("the control changed its weights although its learning rate is 0")
            seconds = statistics.median(record.generation_seconds for record in records[1:])
            print(f"calibrate: {settings.prompts} prompts x {GROUP} take {seconds:.2f} s to generate", flush=True)
            wanted = 8 * round(settings.prompts * 1.1 * MIN_GENERATION_SECONDS / seconds / 8)
            long_enough = seconds >= MIN_GENERATION_SECONDS
            short_enough = seconds <= ENOUGH_GENERATION_SECONDS or attempt >= MOST_ATTEMPTS or wanted < MIN_PROMPTS
            if (long_enough and short_enough) or (not long_enough and settings.prompts >= MAX_PROMPTS):
                break
            settings = replace(settings, prompts=max(MIN_PROMPTS, min(MAX_PROMPTS, wanted, 2 * settings.prompts)))
        return settings, seconds

    def _cap(self, bytes_per_second: float) -> None:
        kib = bytes_per_second / 1024
        for program in (self.host, *self.nodes):
            program.caps(kib, kib)
        print(f"caps: {kib:.0f} KiB/s up and down for the host and every node", flush=True)

    def _phase(self, name: str, run: AsyncRun, steps: int) -> PhaseFigures:
        """Run one phase between two snapshots of every program's status."""
        self._wait_for_version(run.enter())
        before, started = self._statuses(), boottime()
        records = []
        for record in run.steps(steps):
            records.append(record)
            changed = record.publication.changed / record.publication.elements
            print(
                f"{name} {len(records):>2}/{steps}  reward {record.report.reward:.2f}  changed {changed:.3f}  "
                f"{record.publication.kind} {record.publication.bytes / 1024:.0f} KiB  "
                f"generated in {record.generation_seconds:.1f} s  trained in {record.report.seconds:.1f} s",
                flush=True,
            )
        seconds = boottime() - started
        self._wait_for_version(records[-1].publication.version)
        return PhaseFigures(records, seconds, before, self._statuses())

    def _wait_for_version(self, version: int) -> None:
        wait_until(
            lambda: all(node.status()["version"] >= version for node in self.nodes),
            START_SECONDS,
            f"every node at version {version}",
        )

    def _statuses(self) -> Statuses:
        return Statuses(self.host.status(), [node.status() for node in self.nodes])
