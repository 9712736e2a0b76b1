"""A swarm of real processes on loopback, and a trainer in this one.

A bootstrap, a host and nodes run as a user would start them (`aurora_p2p.host.programs`). The model is tiny and
untrained: here it does not matter what it learns, but that every version and every sample arrives. The host's ports are
chosen before, so that it is where it was when it is started again. The trainer survives a host that is killed, as a
training job would.
"""

from __future__ import annotations

import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from aurora_p2p.engine.model import build_model, checkpoint_bits, write_checkpoint
from aurora_p2p.errors import UnreachableError
from aurora_p2p.host.programs import Program, Programs, descendants, run_once, wait_until
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.train.loop import AsyncRun, GrpoTrainer, RunOptions, StepRecord, TrainOptions
from aurora_p2p.train.tasks import Tokens
from aurora_p2p.wire.manifest import ModelConfig
from tests.e2e.tasks import QUICK, SLOW, VOCABULARY, Babble

LONG = 90.0
"""Patience with a loaded machine; what is measured has bounds of its own."""
LEASE_SECONDS = 12.0
MAX_LEASE_SAMPLES = 16
PRIVATE = ["--local", "127.0.0.0/8"]
ANYWHERE = ["--listen", "/ip4/127.0.0.1/tcp/0", "--bulk-listen", "127.0.0.1:0"]
WORK = ["--threads", "1", "--max-batch", "8", "--audit-every", "1"]
TINY = ModelConfig(
    architecture="qwen3",
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=64,
    layers=1,
    heads=4,
    kv_heads=2,
    head_dim=8,
    max_positions=512,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    attention_bias=False,
    eos_tokens=(258,),
    pad_token=256,
)
Status = dict[str, Any]


PROMPTS, GROUP = 16, 4


def tiny_checkpoint(folder: Path, config: ModelConfig = TINY, seed: int = 0) -> GrpoTrainer:
    """Write an untrained model; returns the trainer that starts from it."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = build_model(config)
    specs, bits = checkpoint_bits(model)
    write_checkpoint(folder, config, specs, bits)
    return GrpoTrainer(model, config, TrainOptions(lr=1e-2, eps=1e-3))


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def score(pairs: Sequence[tuple[Tokens, Tokens]]) -> list[float]:
    return [QUICK.score(prompt, tokens) for prompt, tokens in pairs]


@dataclass
class Swarm:
    """The running programs. `trainer` holds the weights of the newest version."""

    programs: Programs
    checkpoint: Path
    trainer: GrpoTrainer
    bootstrap: Program
    host: Program
    address: str
    ticket: str
    nodes: list[Program] = field(default_factory=list)

    @property
    def swarm_id(self) -> str:
        return str(self.host.status()["swarm"])

    @classmethod
    def start(cls, programs: Programs, env: Mapping[str, str] | None = None) -> Swarm:
        """A bootstrap and a host that has published version 0; no nodes yet. env: of the host, for this start."""
        checkpoint = programs.folder / "checkpoint"
        trainer = tiny_checkpoint(checkpoint)
        bootstrap_port, control, bulk = free_ports(3)
        words = ["aurora-bootstrap", "serve", "--listen", f"127.0.0.1:{bootstrap_port}"]
        bootstrap = programs.start("bootstrap", words)
        address = bootstrap.wait_for("listening", LONG)["addresses"][0]
        home = programs.folder / "host"
        where = ["--listen", f"/ip4/127.0.0.1/tcp/{control}", "--bulk-listen", f"127.0.0.1:{bulk}", *PRIVATE]
        size = ["--segment-bytes", "1024", "--max-lease-samples", str(MAX_LEASE_SAMPLES)]
        checkpoint_words = ["--checkpoint", str(checkpoint), "--bootstrap", address]
        run_once(["aurora-host", "init", "--home", str(home), *checkpoint_words, *where, *size])
        set_key(home / "run.toml", "lease_seconds", LEASE_SECONDS)
        host = programs.start("host", ["aurora-host", "run"], dict(env or {}))
        ticket = host.wait_for("ready", LONG)["ticket"]
        host.wait_for("published", LONG)
        return cls(programs, checkpoint, trainer, bootstrap, host, address, ticket)

    # ---- programs

    def start_node(self, name: str, where: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Program:
        """A node of its own home, by ticket unless `where` says otherwise; the same name is the same home again."""
        words = ["aurora-node", "join", *(where or [self.ticket]), *ANYWHERE, *WORK]
        return self.programs.start(name, words, dict(env or {}))

    def restart(self, program: Program, env: Mapping[str, str] | None = None, where: Sequence[str] = ()) -> Program:
        """Start a node that has ended again, with its home, in its place."""
        again = self.start_node(program.name, where, env)
        self.nodes[self.nodes.index(program)] = again
        return again

    @contextmanager
    def guest(self, name: str, where: Sequence[str] = ()) -> Iterator[Program]:
        """A node for one test."""
        program = self.start_node(name, where)
        try:
            yield program
        finally:
            program.stop()

    def start_bootstrap(self) -> None:
        """After it was killed: the same home and port, and so the same address."""
        port = self.address.split("/")[4]
        words = ["aurora-bootstrap", "serve", "--listen", f"127.0.0.1:{port}"]
        self.bootstrap = self.programs.start("bootstrap", words)
        assert self.bootstrap.wait_for("listening", LONG)["addresses"] == [self.address]

    def kill_host(self) -> None:
        self.host.process.kill()
        self.host.process.wait()

    def start_host(self, env: Mapping[str, str] | None = None) -> None:
        """After it was killed or stopped: the same home again."""
        self.host = self.programs.start("host", ["aurora-host", "run"], dict(env or {}))
        self.host.wait_for("ready", LONG)

    def mend(self) -> None:
        """Start whatever has ended again."""
        if self.bootstrap.process.poll() is not None:
            self.start_bootstrap()
        if self.host.process.poll() is not None:
            self.start_host()
        for node in [node for node in self.nodes if node.process.poll() is not None]:
            self.restart(node)

    # ---- training

    @contextmanager
    def run(self, task: Babble = QUICK) -> Iterator[AsyncRun]:
        with SwarmClient.open(self.host.home) as client:
            yield AsyncRun(client, task, self.trainer, score, RunOptions(prompts=PROMPTS, group=GROUP))

    def train(self, steps: int, task: Babble = QUICK) -> list[StepRecord]:
        """Take optimizer steps from where the swarm stands."""
        with self.run(task) as run:
            return list(run.steps(steps))

    @contextmanager
    def training(self, steps: int, task: Babble = SLOW) -> Iterator[Future[list[StepRecord]]]:
        """The same beside the test."""
        with ThreadPoolExecutor(1) as threads:
            yield threads.submit(self.train, steps, task)

    @property
    def digest(self) -> str:
        """What the newest manifest names, hex."""
        with SwarmClient.open(self.host.home) as client:
            return client.attach().digest.hex()

    # ---- waiting

    def settle(self, *nodes: Program) -> list[Status]:
        """Wait until nodes (all, if none is named) serve the newest version; returns their status.

        Each must have recomputed the digest of all its weights, and found what the host signed.
        """
        which = nodes or tuple(self.nodes)
        version, digest = self.host.status()["version"], self.digest
        for node in which:
            wait_until_serving(node, version)
        statuses = [node.status() for node in which]
        for status in statuses:
            assert (status["digest"], status["audited"], status["digest_mismatches"]) == (digest, version, 0)
        return statuses

    def leased(self, peer: str) -> int:
        """Samples that a peer holds now, as the host sees it."""
        nodes = self.host.status()["work"]["nodes"]
        return sum(node["leased"] for node in nodes if node["peer"] == peer)

    def wait_for_lease(self, peer: str) -> None:
        wait_until(lambda: self.leased(peer) > 0, LONG, f"a lease of {peer}")

    def ledger(self, query: str, *values: int) -> list[tuple[Any, ...]]:
        """Ask a copy of the host's ledger: the host has it locked. Call while the host is at rest."""
        with tempfile.TemporaryDirectory() as folder:
            for path in self.host.home.glob("ledger.sqlite*"):  # a host that ended well left no -wal
                if not path.name.endswith("-shm"):
                    shutil.copy(path, folder)
            with closing(sqlite3.connect(Path(folder) / "ledger.sqlite")) as copy:
                return copy.execute(query, values).fetchall()

    def in_ledger(self, step: int) -> int:
        """Admitted samples of a step on the host's disk."""
        ((count,),) = self.ledger("SELECT count(*) FROM samples WHERE step = ?", step)
        return int(count)


def wait_until_serving(node: Program, version: int) -> None:
    """A node that has just been started may not answer yet; one that has ended never will."""

    def serving() -> bool:
        assert node.process.poll() is None, f"{node.name} has ended: {node.tail()}"
        try:
            return bool(node.status()["version"] == version)
        except UnreachableError:
            return False

    wait_until(serving, LONG, f"{node.name} at version {version}")


def set_key(path: Path, key: str, value: float) -> None:
    """Change one key of a settings file that `init` wrote."""
    lines = path.read_text().splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith(f"{key} = ")]
    assert len(places) == 1, f"{key} is not in {path}"
    lines[places[0]] = f"{key} = {value}"
    path.write_text("\n".join(lines) + "\n")


def child_of(program: Program, module: str) -> psutil.Process:
    """The child process of a daemon that runs `module`."""
    pid = program.process.pid
    wait_until(lambda: bool(descendants(pid, module)), LONG, f"{program.name} runs {module}")
    return descendants(pid, module)[0]


ENGINE, BULK = "aurora_p2p.engine.worker", "aurora_p2p.net.bulk"


def grown(before: Status, after: Status, *keys: str) -> float:
    """How much a counter of a status grew."""
    for key in keys:
        before, after = before[key], after[key]
    return after - before  # type: ignore[operator]


@dataclass(frozen=True)
class Ended:
    """A program that ended by itself, and what it said."""

    status: int
    out: str
    err: str

    @property
    def complaint(self) -> tuple[str, str]:
        """Its one `error:` line and its one `hint:` line, without the prefixes. Asserts that there is nothing else."""
        lines = self.err.splitlines()
        assert len(lines) == 2, self.err
        assert lines[0].startswith("error: "), self.err
        assert lines[1].startswith("hint:  "), self.err
        return lines[0].removeprefix("error: "), lines[1].removeprefix("hint:  ")


def run_to_end(*words: str | Path) -> Ended:
    """Run one of our programs to its end."""
    command = [str(Path(sys.executable).with_name(str(words[0]))), *map(str, words[1:])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)
    return Ended(done.returncode, done.stdout, done.stderr)
