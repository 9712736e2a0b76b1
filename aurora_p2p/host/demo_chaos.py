"""`aurora-host demo --chaos`: a policy learns over the swarm under a seeded plan of faults, and what held is shown.

A bootstrap, a host, nodes and a trainer run as processes of their own; this process breaks them, one fault after the
other, and waits after each until the swarm is well: the host has published a further version, and every node serves it.
Recovery counts from the restart or SIGCONT. At the end every node's digest is audited against the host's, and every
acknowledged sample is looked for in the ledger.

Nothing here repairs anything: a program that was killed is started again with its home, and that is all.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aurora_p2p.errors import AuroraError, ChildError, DigestMismatch
from aurora_p2p.host.chaos import Fault, plan_of
from aurora_p2p.host.chaos_programs import FAULT_SECONDS, START_SECONDS, ChaosSwarm
from aurora_p2p.host.chaos_report import Outcome, broken, render_chaos
from aurora_p2p.host.programs import Programs, run_once, wait_until
from aurora_p2p.host.watching import Watching
from aurora_p2p.local.clock import OFFSET, boottime
from aurora_p2p.local.config import make_home
from aurora_p2p.testing.audit import accepted_in, audit, samples_in
from aurora_p2p.testing.faults import corrupt, kill, marks_in, plan

SEGMENT_BYTES = 1024
PROMPTS, GROUP = 48, 8
NODE_BATCH = 16
LEASE_SECONDS = 12.0
"""What a killed node holds is missing for so long at most."""
RECOVERY_SECONDS = 90.0
"""After that a fault counts as one that the swarm did not recover from."""
FOREVER = 1_000_000
CORRUPT_BYTE = 20_000
"""Of what a node receives after its start: in the middle of a delta."""
LAST_STEPS = 2
LOOK_SECONDS = 0.3
"""Between two looks at everybody: they cost the machine something."""


def run_chaos(home: Path, options: argparse.Namespace) -> None:
    """Run it, print each event and the table, write --report. Raises AuroraError when an invariant is broken."""
    make_home(home)
    started = boottime()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the programs are stopped on the way out
    with tempfile.TemporaryDirectory(prefix="aurora-chaos-") as folder, Programs(Path(folder)) as programs:
        print(f"starting a bootstrap, a host and {options.nodes} nodes (logs in {folder} while it runs)", flush=True)
        chaos = Chaos.start(programs, home, options)
        with Watching(chaos.swarm.host.home, {node.name: node.home for node in chaos.swarm.nodes}) as watching:
            chaos.swarm.watching = watching
            outcomes = [chaos.carry_out(fault) for fault in plan_of(options.seed, options.nodes)]
            chaos.finish(options.steps)
            report = chaos.report(outcomes, watching, options)
    report["wall_seconds"] = boottime() - started
    print(render_chaos(report))
    if options.report:
        options.report.write_text(json.dumps(report, indent=2) + "\n")
        print(f"report: {options.report}")
    if problems := broken(report):
        raise DigestMismatch("; ".join(problems)) if report["mismatches"] else AuroraError("; ".join(problems))


def _ports() -> tuple[int, int, int]:
    """Fixed ones: a host or bootstrap that starts again is where it was."""
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    try:
        first, second, third = (sock.getsockname()[1] for sock in sockets)
    finally:
        for sock in sockets:
            sock.close()
    return first, second, third


@dataclass
class Chaos:
    """The swarm, and the checkpoint that it started from."""

    swarm: ChaosSwarm
    checkpoint: Path

    @classmethod
    def start(cls, programs: Programs, home: Path, options: argparse.Namespace) -> Chaos:
        """Start every program; the model's warm-up runs meanwhile."""
        from aurora_p2p.host.demo import _pretrained

        bootstrap, control, bulk = _ports()
        swarm = ChaosSwarm(programs, {"bootstrap": ["aurora-bootstrap", "serve", "--listen", f"127.0.0.1:{bootstrap}"]})
        started = swarm.start("bootstrap")
        checkpoint = _pretrained(home, options.seed)
        address = started.wait_for("listening", START_SECONDS)["addresses"][0]
        host_home = programs.folder / "host"
        where = ["--listen", f"/ip4/127.0.0.1/tcp/{control}", "--bulk-listen", f"127.0.0.1:{bulk}"]
        size = ["--segment-bytes", str(SEGMENT_BYTES), "--max-lease-samples", str(2 * NODE_BATCH)]
        local = ["--local", "127.0.0.0/8"]
        run_once(["aurora-host", "init", "--home", str(host_home), "--bootstrap", address, *where, *local, *size])
        _set_lease_seconds(host_home / "run.toml")
        swarm.words["host"] = ["aurora-host", "run"]
        ticket = swarm.start("host").wait_for("ready", START_SECONDS)["ticket"]
        loopback = ["--listen", "/ip4/127.0.0.1/tcp/0", "--bulk-listen", "127.0.0.1:0", *local]
        work = ["--threads", "1", "--max-batch", str(NODE_BATCH), "--audit-every", "1"]
        for name in [*(f"node{number}" for number in range(options.nodes)), "late"]:
            swarm.words[name] = ["aurora-node", "join", ticket, *work, *loopback]
        for number in range(options.nodes):
            swarm.start(f"node{number}")
        chaos = cls(swarm, checkpoint)
        chaos._train(FOREVER, options)
        wait_until(lambda: swarm.serves(1), START_SECONDS, "the first step")
        return chaos

    def _train(self, until: int, options: argparse.Namespace) -> None:
        words = ["python", "-m", "aurora_p2p.train.process", str(self.swarm.programs.folder / "host")]
        size = ["--prompts", str(PROMPTS), "--group", str(GROUP), "--lr", str(options.lr), "--seed", str(options.seed)]
        self.swarm.words["trainer"] = [*words, *size, "--checkpoint", str(self.checkpoint), "--until", str(until)]
        self.swarm.start("trainer")

    # ---- faults

    def carry_out(self, fault: Fault) -> Outcome:
        """Break something, let it start again, and wait until all is well. Never raises for what does not recover."""
        print(f"{fault.what} ({fault.whom})", flush=True)
        try:
            version = self._break(fault)
            repaired = boottime()
            self._wait_for(version + 1)
        except ChildError as error:
            print(f"    NOT RECOVERED: {error} {error.hint}", flush=True)
            return Outcome(fault.what, fault.whom, None, f"{error} {error.hint}".strip())
        seconds = boottime() - repaired
        print(f"    recovered in {seconds:.1f} s: version {version + 1} is published and served by all", flush=True)
        return Outcome(fault.what, fault.whom, seconds, "")

    def _break(self, fault: Fault) -> int:
        """Carry the fault out and undo it; returns the newest version that was published before the undoing."""
        swarm, whom = self.swarm, fault.whom
        self._note_version()
        match fault.how:
            case "kill":
                if whom != "host":
                    swarm.wait_for_lease(whom)
                swarm.kill(whom)
                self._note_version()
                swarm.start(whom)
            case "point":
                kind: Any = "node" if whom.startswith("node") else whom
                swarm.killed_by(whom, plan(kill(fault.point, hit=fault.hit, process=kind)))
                self._note_version()
                swarm.start(whom)
            case "stop":
                swarm.running[whom].signal(signal.SIGSTOP)
                _pass_time(fault.seconds)
                swarm.running[whom].signal(signal.SIGCONT)
            case "child":
                swarm.kill_child(whom, fault.point)
            case "corrupt":
                marks = swarm.armed(whom, plan(corrupt(CORRUPT_BYTE)))
                wait_until(lambda: bool(marks_in(marks)), FAULT_SECONDS, f"a corrupted segment at {whom}")
            case "date":
                swarm.restart(whom, {OFFSET: str(fault.seconds)})
            case "gone":
                swarm.kill(whom)
                swarm.gone.add(whom)
            case "join":
                swarm.start(whom)
        self._note_version()
        return self._newest

    _newest = 0

    def _note_version(self) -> None:
        self._newest = max(self.swarm.version(), self._newest)

    def _wait_for(self, version: int) -> None:
        """Until all is well at a version. Raises ChildError."""
        wait_until(
            lambda: self.swarm.serves(version), RECOVERY_SECONDS, f"version {version} everywhere", every=LOOK_SECONDS
        )
        self.swarm.require_alive()

    # ---- the end

    def finish(self, steps: int) -> None:
        """Let the trainer take its last steps, so that what it saved is what the swarm serves."""
        swarm = self.swarm
        swarm.running["trainer"].stop()
        until = max(swarm.version() + LAST_STEPS, steps)
        words = swarm.words["trainer"]
        words[words.index("--until") + 1] = str(until)
        trainer = swarm.start("trainer")
        trainer.wait_for("finished", START_SECONDS + 10 * until)
        trainer.process.wait()
        swarm.gone.add("trainer")
        self._wait_for(until)

    def report(self, outcomes: list[Outcome], watching: Watching, options: argparse.Namespace) -> dict[str, Any]:
        """Every figure, plain values."""
        from aurora_p2p.train.client import SwarmClient

        swarm = self.swarm
        statuses = {node.name: node.status() for node in swarm.nodes}
        with SwarmClient.open(swarm.host.home) as client:
            digest = client.attach().digest.hex()
        logs = {status["peer"]: swarm.running[name].home / "logs" / "node.log" for name, status in statuses.items()}
        told = {peer: accepted_in(log) for peer, log in logs.items()}
        result = audit(told, samples_in(swarm.host.home / "ledger.sqlite"))
        good = [one["digest"] == digest and one["audited"] == one["version"] for one in statuses.values()]
        return {
            "seed": options.seed,
            "nodes": options.nodes,
            "faults": [asdict(outcome) for outcome in outcomes],
            "not_recovered": sum(outcome.seconds is None for outcome in outcomes),
            "max_recovery_seconds": max((one.seconds for one in outcomes if one.seconds is not None), default=0.0),
            "versions": swarm.version() + 1,
            "audits_passed": sum(good),
            "audits_failed": len(good) - sum(good),
            "mismatches": watching.mismatches,
            "accepted": result.accepted,
            "doubled": len(result.doubled),
            "lost": len(result.lost),
            "stuck": [asdict(stall) for stall in watching.dog.stalls],
            "longest_still_seconds": watching.dog.longest,
            "heldout": self._heldout(),
        }

    def _heldout(self) -> dict[str, float]:
        """Sampled accuracy on prompts that were never trained on: of the start (control) and of what is served now."""
        from aurora_p2p.engine.model import read_checkpoint
        from aurora_p2p.train.evaluate import Weights, sampled_accuracy
        from aurora_p2p.train.loop import LEARN, GrpoTrainer
        from aurora_p2p.train.process import STATE
        from aurora_p2p.train.rewards import RewardChild
        from aurora_p2p.train.save import resume_trainer
        from aurora_p2p.train.tasks import HELD_OUT, SORT_DIGITS

        start = Weights(*read_checkpoint(self.checkpoint))
        trainer = GrpoTrainer(start.model(), start.config, LEARN)
        resume_trainer(self.swarm.running["trainer"].home / STATE, trainer)
        prompts, seeds = SORT_DIGITS.held_out(HELD_OUT), range(3)
        with RewardChild(SORT_DIGITS) as rewards:
            before = sampled_accuracy(start, SORT_DIGITS, prompts, seeds, rewards.score)
            after = sampled_accuracy(
                Weights.of(start.config, trainer.model), SORT_DIGITS, prompts, seeds, rewards.score
            )
        return {"control": before.mean, "control_sd": before.sd, "after": after.mean}


def _pass_time(seconds: float) -> None:
    end = boottime() + seconds
    wait_until(lambda: boottime() >= end, seconds + 60.0, "the time")


def _set_lease_seconds(path: Path) -> None:
    lines = path.read_text().splitlines()
    path.write_text(
        "\n".join(f"lease_seconds = {LEASE_SECONDS}" if line.startswith("lease_seconds") else line for line in lines)
        + "\n"
    )
