"""Running the project's own programs as separate processes: what the demo and the end-to-end tests are made of.

Each program is started as a user would start it, with --json, in its own home folder; its events are read by a thread.
On leaving, all are asked to stop (SIGTERM), then killed; only processes started here are ever signalled.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from aurora_p2p.errors import ChildError
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.control import ask, socket_path

STOP_SECONDS = 25.0
TAIL_LINES = 8


class Program:
    """One running program: `name` for messages, `home` its folder. inside: words in front (`ip netns exec NAME`)."""

    def __init__(
        self,
        name: str,
        home: Path,
        words: Sequence[str],
        env: dict[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.name, self.home = name, home
        self.log = home / "stderr.log"
        self.events: list[dict[str, Any]] = []
        self._new: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*inside, str(Path(sys.executable).with_name(words[0])), *words[1:], "--home", str(home), "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        if self.process.stdout is None:
            return
        with self.process.stdout as lines:
            for line in lines:
                with suppress(json.JSONDecodeError):
                    self._new.put(json.loads(line))
        self._new.put(None)

    def wait_for(self, event: str, seconds: float) -> dict[str, Any]:
        """The next event of that name. Raises ChildError when the program ends first, or the time is up."""
        give_up = boottime() + seconds
        while True:
            try:
                got = self._new.get(timeout=max(give_up - boottime(), 0.01))
            except queue.Empty:
                raise ChildError(
                    f"{self.name} did not report {event!r} within {seconds:.0f} s", hint=self.tail()
                ) from None
            if got is None:
                raise ChildError(f"{self.name} ended with status {self.process.wait()}", hint=self.tail())
            self.events.append(got)
            if got["event"] == event:
                return got

    def news(self) -> list[dict[str, Any]]:
        """The events since the last call of this or `wait_for`; never waits."""
        got: list[dict[str, Any]] = []
        with suppress(queue.Empty):
            while (event := self._new.get_nowait()) is not None:
                got.append(event)
        return got

    def seen(self) -> list[dict[str, Any]]:
        """Every event so far; those that nobody waited for are taken now."""
        with suppress(queue.Empty):
            while (got := self._new.get_nowait()) is not None:
                self.events.append(got)
            self._new.put(None)  # it has ended, and whoever waits must learn it
        return self.events

    def status(self) -> dict[str, Any]:
        """Its status over the control socket. Raises UnreachableError."""
        return ask(socket_path(self.home, "control"), "status")

    def caps(self, up_kib: float, down_kib: float) -> None:
        ask(socket_path(self.home, "control"), "caps", up_kib=up_kib, down_kib=down_kib)

    def tail(self) -> str:
        """The last lines it wrote to stderr."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-TAIL_LINES:]) or f"nothing in {self.log}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """SIGTERM, then SIGKILL; returns the exit status."""
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Programs:
    """A set of programs under one folder; leaving the block stops them, last started first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[Program] = []

    def start(
        self, name: str, words: Sequence[str], env: dict[str, str] | None = None, inside: Sequence[str] = ()
    ) -> Program:
        program = Program(name, self.folder / name, words, env, inside)
        self.running.append(program)
        return program

    def __enter__(self) -> Programs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for program in self.running:
            program.signal(signal.SIGTERM)
        for program in reversed(self.running):
            program.stop()


def run_once(words: Sequence[str]) -> str:
    """Run one command of ours to its end; returns its stdout. Raises ChildError with what it wrote to stderr."""
    command = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise ChildError(f"{' '.join(words[:2])} ended with status {done.returncode}", hint=done.stderr.strip()[-500:])
    return done.stdout


def descendants(pid: int, *words: str) -> list[psutil.Process]:
    """The living descendants of a process with one of `words` in an argument; [] when it has ended itself."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it may end at any moment
                if any(word in argument for argument in child.cmdline() for word in words):
                    found.append(child)
    return found


def wait_until(condition: Callable[[], bool], seconds: float, what: str, *, every: float = 0.1) -> None:
    """Poll a condition. Raises ChildError when it does not hold in time."""
    give_up = boottime() + seconds
    pause = threading.Event()
    while not condition():
        if boottime() > give_up:
            raise ChildError(f"{what}: not within {seconds:.0f} s")
        pause.wait(every)
