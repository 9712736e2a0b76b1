"""Reads a guide as a person would type it: every `sh` block, line by line, in one sandbox.

`&` at the end starts a program and waits until it has said what the guide says it prints; that is kept in a variable of
the guide (BOOTSTRAP, TICKET). `export` lines set variables. Well-known ports are exchanged for free ones. Every other
line must end with status 0.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from aurora_p2p.host.programs import wait_until

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE_SECONDS = 120.0
READY = {
    "aurora-bootstrap": ("BOOTSTRAP", re.compile(r"(/ip4/\S+/p2p/12D3Koo\w+)")),
    "aurora-host": ("TICKET", re.compile(r"(aurora1[a-z2-7]{40,})")),
    "aurora-node": ("SERVING", re.compile(r"(serving version \d+)")),
}
"""What a program prints once it is ready, and the variable of the guide that it becomes."""


def shell_lines(guide: Path) -> Iterator[str]:
    """The lines of the blocks that run, continued lines joined."""
    for tag, text in FENCE.findall(guide.read_text()):
        if tag.strip() == "sh":
            yield from (line for line in text.replace("\\\n", " ").splitlines() if line.strip())


@dataclass
class Session:
    """A shell of a stranger: an own home folder, our programs first on the path."""

    folder: Path
    ports: Mapping[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    """Line -> what it printed."""
    _running: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)

    def __enter__(self) -> Self:
        kept = ("LANG", "OMP_NUM_THREADS", "HF_HUB_OFFLINE", "LD_LIBRARY_PATH")
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        self.variables |= {name: os.environ[name] for name in kept if name in os.environ}
        self.variables |= {"PATH": path, "HOME": str(self.folder), "PYTHONPATH": os.pathsep.join(sys.path[:1])}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process, _ in reversed(self._running):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(PATIENCE_SECONDS)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)

    def type(self, line: str) -> None:
        """One line of the guide. Raises AssertionError with all that was printed when it does not do what it should."""
        for port, free in self.ports.items():
            line = re.sub(rf"\b{port}\b", free, line)
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self.variables[name] = self._run(f'echo -n "{value}"')
        elif line.rstrip().endswith("&"):
            self._start(line.rstrip().removesuffix("&"))
        else:
            self.said[line] = self._run(line)

    def _run(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}[status {done.returncode}]"
        return done.stdout

    def _start(self, line: str) -> None:
        program = shlex.split(line)[0]
        variable, ready = READY[program]
        output = self.folder / f"output-{len(self._running)}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self.folder,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._running.append((process, output))

        def is_ready() -> bool:
            assert process.poll() is None, f"$ {line}&\n{output.read_text()}[status {process.returncode}]"
            found = ready.search(output.read_text(errors="replace"))
            self.variables |= {variable: found[1]} if found else {}
            return found is not None

        wait_until(is_ready, PATIENCE_SECONDS, f"$ {line}& does not say what it should")
