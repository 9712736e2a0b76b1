"""The programs of the demo under faults: how each is started, killed, stopped, armed, and when it is well again."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aurora_p2p.errors import AuroraError, ChildError
from aurora_p2p.host.programs import Program, Programs, descendants, wait_until
from aurora_p2p.host.watching import Watching
from aurora_p2p.testing.faults import Faults, marks_in

START_SECONDS = 120.0
FAULT_SECONDS = 90.0
"""How long a crash point may take to be reached: a node that is killed in a transfer waits for the next version."""


@dataclass
class ChaosSwarm:
    """Running programs by name: bootstrap, host, trainer, node0, ... words: how each is started (again)."""

    programs: Programs
    words: dict[str, list[str]]
    running: dict[str, Program] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Programs that are away for good."""
    watching: Watching | None = None
    _marks: int = 0

    @property
    def nodes(self) -> list[Program]:
        return [self.running[name] for name in sorted(self.running) if name not in ("bootstrap", "host", "trainer")]

    @property
    def host(self) -> Program:
        return self.running["host"]

    def start(self, name: str, env: Mapping[str, str] | None = None) -> Program:
        """Start a program, or start it again with the same home."""
        program = self.programs.start(name, self.words[name], dict(env or {}))
        self.running[name] = program
        if self.watching is not None and name not in ("bootstrap", "host", "trainer"):
            self.watching.add(name, program.home)
        return program

    def kill(self, name: str) -> None:
        """SIGKILL, and wait until it is gone."""
        program = self.running[name]
        program.process.kill()
        program.process.wait()

    def restart(self, name: str, env: Mapping[str, str] | None = None) -> None:
        self.kill(name)
        self.start(name, env)

    def killed_by(self, name: str, faults: Faults) -> None:
        """Start a program again with a plan, and wait until the plan has killed it. Raises ChildError."""
        armed = self.armed(name, faults)
        wait_until(lambda: self.running[name].process.poll() is not None, FAULT_SECONDS, f"the fault in {name}")
        if not marks_in(armed):
            raise ChildError(f"{name} ended by itself", hint=self.running[name].tail())

    def armed(self, name: str, faults: Faults) -> Path:
        """Start a program again with a plan; returns the folder of its marks."""
        self._marks += 1
        marks = self.programs.folder / f"marks{self._marks}"
        marks.mkdir()
        self.restart(name, faults.environment(marks))
        return marks

    def kill_child(self, name: str, module: str) -> None:
        """SIGKILL to the child of a daemon that runs `module`. Raises ChildError when it has none in time."""
        pid = self.running[name].process.pid
        wait_until(lambda: bool(descendants(pid, module)), START_SECONDS, f"{name} runs {module}")
        for child in descendants(pid, module):
            child.send_signal(signal.SIGKILL)

    def status(self, name: str) -> dict[str, Any] | None:
        """A program's status; None while it does not answer."""
        try:
            return self.running[name].status()
        except AuroraError:
            return None

    def wait_for_lease(self, name: str) -> None:
        """Until a node holds a lease, as the host sees it. Raises ChildError."""
        wait_until(lambda: self._leased(name) > 0, FAULT_SECONDS, f"a lease of {name}")

    def _leased(self, name: str) -> int:
        node, host = self.status(name), self.status("host")
        if node is None or host is None:
            return 0
        return sum(one["leased"] for one in host["work"]["nodes"] if one["peer"] == node["peer"])

    def version(self) -> int:
        """The host's version; -1 while it does not answer."""
        status = self.status("host")
        return int(status["version"]) if status else -1

    def serves(self, version: int) -> bool:
        """Whether the host has published `version`, and every node serves it or a newer one."""
        if self.version() < version:
            return False
        statuses = [self.status(node.name) for node in self.nodes]
        return all(status is not None and status["version"] >= version for status in statuses)

    def require_alive(self) -> None:
        """Raises ChildError when a program has ended that nobody killed."""
        for name, program in self.running.items():
            if name not in self.gone and program.process.poll() is not None:
                raise ChildError(f"{name} ended with status {program.process.poll()}", hint=program.tail())
