"""A watchdog over running programs: asks every one for its status again and again, from threads of its own.

    with Watching(host_home, {"node0": home0, ...}) as watching:
        ...
    watching.dog.stalls                      empty, or what was stuck (testing/watchdog.py)

A program that has not answered for SILENT_SECONDS counts as not there: killed, stopped, or starting.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from aurora_p2p.errors import AuroraError
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.control import ask, socket_path
from aurora_p2p.testing.watchdog import BOUND_SECONDS, Watchdog

LOOK_SECONDS = 0.5
SILENT_SECONDS = 3.0
HOST = ""
"""The host's name among the programs."""


class Watching:
    """Use as a context manager; `add` may be called at any time."""

    def __init__(self, host: Path, nodes: Mapping[str, Path], bound: float = BOUND_SECONDS) -> None:
        self.dog = Watchdog(bound)
        self._homes = {HOST: host, **nodes}
        self._latest: dict[str, tuple[float, dict[str, Any]]] = {}
        self._mismatches: dict[str, int] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def mismatches(self) -> int:
        """Failed digest audits that were seen: the most of any start of each node, for a restart forgets them."""
        return sum(self._mismatches.values())

    def add(self, name: str, home: Path) -> None:
        """Watch one more node; one that is watched already is left alone."""
        if name in self._homes:
            return
        self._homes[name] = home
        self._start(self._ask, name)

    def __enter__(self) -> Watching:
        for name in self._homes:
            self._start(self._ask, name)
        self._start(self._look)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _start(self, target: Any, *arguments: str) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _ask(self, name: str) -> None:
        path = socket_path(self._homes[name], "control")
        while not self._stop.wait(LOOK_SECONDS):
            try:
                status = ask(path, "status")
            except AuroraError:
                continue  # it does not run, or is stopped
            self._latest[name] = (boottime(), status)
            found = int(status.get("digest_mismatches", 0))
            self._mismatches[name] = max(self._mismatches.get(name, 0), found)

    def _look(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            now = boottime()
            fresh = {name: status for name, (at, status) in self._latest.copy().items() if now - at < SILENT_SECONDS}
            nodes = {name: fresh.get(name) for name in list(self._homes) if name != HOST}
            self.dog.look(fresh.get(HOST), nodes, now=now)
