"""A swarm of real processes on loopback: a bootstrap, a host, nodes with the simulated engine, a trainer.

    with Fleet.open(folder, nodes=3) as fleet:
        fleet.settle(...)                     every node serves what the host serves, proven by its digest
        fleet.restart("node1", environment)   the same home again, after a kill

Every program runs as its user would start it (host/programs.py), in a home of its own, with fixed ports for bootstrap
and host, so that each is where it was when it is started again. The trainer's weights follow from the version alone
(fleet_model.py): the expected digest of every version is known here without asking anybody. Tokens are invented and
their speed is a setting: figures of generation are simulated.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from aurora_p2p.errors import AuroraError
from aurora_p2p.host.programs import Program, Programs, run_once, wait_until
from benchmarks.fleet_model import digest_at

PATIENCE_SECONDS = 120.0
"""For a start on a loaded machine; what is measured has bounds of its own."""
PRIVATE = ("--local", "127.0.0.0/8")
SEGMENT_BYTES = 512
"""A delta of the fleet's model makes a handful of segments, a snapshot hundreds."""
LEASE_SECONDS = 4.0
"""What a dead node holds is missing for so long."""
MAX_LEASE_SAMPLES = 8
ENGINE = "simulated:4000"
ROOT = Path(__file__).resolve().parent.parent

Status = Mapping[str, Any]


@dataclass
class Fleet:
    """The running programs by name: bootstrap, host, trainer, node0, node1, ..."""

    programs: Programs
    ports: tuple[int, int, int]
    pause: float
    running: dict[str, Program] = field(default_factory=dict)
    address: str = ""
    ticket: str = ""

    @classmethod
    @contextmanager
    def open(cls, folder: Path, *, nodes: int = 3, pause: float = 0.3) -> Iterator[Fleet]:
        """Start everything; returns once every node serves a version. pause: seconds a step trains."""
        with Programs(folder) as programs:
            fleet = cls(programs, free_ports(), pause)
            fleet._start_services()
            for number in range(nodes):
                fleet.start(f"node{number}")
            fleet.start("trainer")
            for number in range(nodes):
                fleet.running[f"node{number}"].wait_for("version", PATIENCE_SECONDS)
            yield fleet

    def _start_services(self) -> None:
        bootstrap = self.start("bootstrap")
        self.address = bootstrap.wait_for("listening", PATIENCE_SECONDS)["addresses"][0]
        _, control, bulk = self.ports
        home = self.programs.folder / "host"
        where = ["--listen", f"/ip4/127.0.0.1/tcp/{control}", "--bulk-listen", f"127.0.0.1:{bulk}", *PRIVATE]
        sizes = ["--segment-bytes", str(SEGMENT_BYTES), "--max-lease-samples", str(MAX_LEASE_SAMPLES)]
        run_once(["aurora-host", "init", "--home", str(home), "--bootstrap", self.address, *where, *sizes])
        set_key(home / "run.toml", "lease_seconds", LEASE_SECONDS)
        self.ticket = self.start("host").wait_for("ready", PATIENCE_SECONDS)["ticket"]

    @property
    def nodes(self) -> list[str]:
        return [name for name in self.running if name.startswith("node")]

    def start(self, name: str, environment: Mapping[str, str] | None = None) -> Program:
        """Start a program, or the next process of one that has ended, in its home."""
        program = self.programs.start(name, self._words(name), {"PYTHONPATH": _python_path(), **(environment or {})})
        before = self.running.get(name)
        if before is not None:
            self.programs.running.remove(before)
        self.running[name] = program
        return program

    def restart(self, name: str, environment: Mapping[str, str] | None = None) -> Program:
        """Kill it if it lives, and start it again."""
        program = self.running[name]
        program.signal(signal.SIGKILL)
        program.process.wait()
        return self.start(name, environment)

    def _words(self, name: str) -> list[str]:
        if name == "bootstrap":
            return ["aurora-bootstrap", "serve", "--listen", f"127.0.0.1:{self.ports[0]}"]
        if name == "host":
            return ["aurora-host", "run"]
        if name == "trainer":
            home = self.programs.folder / "host"
            return ["python", "-m", "benchmarks.fleet_trainer", "--host", str(home), "--pause", str(self.pause)]
        where = ["--listen", "/ip4/127.0.0.1/tcp/0", "--bulk-listen", "127.0.0.1:0"]
        work = ["--engine", ENGINE, "--threads", "1", "--max-batch", "8", "--audit-every", "1"]
        return ["aurora-node", "join", self.ticket, *where, *work]

    # ---- looking

    def status(self, name: str) -> Status | None:
        """Of a daemon; None while it does not answer."""
        try:
            return self.running[name].status()
        except AuroraError:
            return None

    def host_version(self) -> int:
        """The newest version the host has published; -1 while it does not answer."""
        status = self.status("host")
        return int(status["version"]) if status else -1

    def settle(self, version: int, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until every node serves `version` or a newer one, audited. Raises ChildError, WrongWeights."""
        for name in self.nodes:
            wait_until(partial(self.serves, name, version), seconds, f"{name} at version {version}")

    def serves(self, name: str, version: int) -> bool:
        """Whether a node serves `version` or newer, after recomputing the whole digest. Raises WrongWeights."""
        status = self.status(name)
        if status is None:
            return False
        check_weights(name, status)
        return int(status["version"]) >= version and bool(status["audited"] == status["version"])


class WrongWeights(Exception):
    """A node reports weights that are not those of the version it names."""


def check_weights(name: str, status: Status) -> None:
    """Raises WrongWeights unless what a node serves has the digest that the manifest of its version must name."""
    version, digest = int(status["version"]), str(status["digest"])
    if version >= 0 and digest and digest != digest_at(version):
        raise WrongWeights(f"{name} serves {digest[:16]} as version {version}, which is {digest_at(version)[:16]}")


def free_ports() -> tuple[int, int, int]:
    """Three ports of 127.0.0.1 that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    first, second, third = (sock.getsockname()[1] for sock in sockets)
    for sock in sockets:
        sock.close()
    return first, second, third


def set_key(path: Path, key: str, value: float) -> None:
    """Change one key of a settings file that `init` wrote."""
    lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")


def _python_path() -> str:
    inherited = os.environ.get("PYTHONPATH")
    return f"{ROOT}{os.pathsep}{inherited}" if inherited else str(ROOT)
