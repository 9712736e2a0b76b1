"""Does anything grow? Thousands of tiny versions through real processes, and what each process holds meanwhile.

    python -m benchmarks.soak --json [--minutes 10] [--churn]

A bootstrap, a host, three nodes with the simulated engine and a trainer run on loopback; each daemon's bulk child and
engine are watched as processes of their own. Growth is the median of the last minute minus the median of the minute
after warm-up, so that neither a spike nor a slow start counts.

    versions             published, and committed by every node that was there throughout
    rss_growth_mb        per process, MB (10**6 bytes)
    open_fds_growth      per process
    tasks_growth         per daemon (trio tasks)
    disk_growth_mb       per home

--churn: beside that, one more node joins, works and leaves, again and again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from aurora_p2p.errors import ChildError
from benchmarks.fleet import PATIENCE_SECONDS, Fleet, Status

SAMPLE_SECONDS = 2.0
DISK_EVERY = 5
"""Samples between two looks at the homes, which are trees."""
WARM_UP_SECONDS = 60.0
WINDOW_SECONDS = 60.0
STUCK_SECONDS = 40.0
NODES = 3
GUEST, GUEST_HOMES = "guest", 4
CHILDREN = {"aurora_p2p.net.bulk": "bulk", "aurora_p2p.engine.worker": "engine"}

Series = dict[str, dict[str, list[tuple[float, float]]]]
"""Quantity -> process -> (seconds since start, value)."""


def processes(fleet: Fleet) -> Iterator[tuple[str, psutil.Process]]:
    """Every process under watch, by name."""
    for name, program in list(fleet.running.items()):  # a thread of guests adds to it
        if name.startswith(GUEST):
            continue
        daemon = psutil.Process(program.process.pid)
        yield name, daemon
        for child in daemon.children():
            with contextlib.suppress(psutil.Error):
                words = " ".join(child.cmdline())
                for module, kind in CHILDREN.items():
                    if module in words:
                        yield f"{name}-{kind}", child


class Watch:
    """Samples everything until stopped."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.series: Series = defaultdict(lambda: defaultdict(list))
        self.last: dict[str, Status] = {}
        self._start = time.monotonic()
        self._looks = 0
        self._progress = (0.0, -1)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def look(self) -> None:
        """One sample of every process and status."""
        now = self.seconds
        for name, process in processes(self.fleet):
            with contextlib.suppress(psutil.Error):
                self._note("rss", name, now, process.memory_info().rss / 1e6)
                self._note("fds", name, now, process.num_fds())
                self._note("cpu", name, now, sum(process.cpu_times()[:2]))
        daemons = ["bootstrap", "host", *(f"node{number}" for number in range(NODES))]
        for name in daemons:
            status = self.fleet.status(name)
            if status is not None:
                self.last[name] = status
                self._note("tasks", name, now, status["process"]["tasks"])
        if self._looks % DISK_EVERY == 0:
            for name in daemons:
                program = self.fleet.running[name]
                self._note("disk", name, now, disk_bytes(program.home) / 1e6)
        self._looks += 1

    def require_progress(self) -> None:
        """Raises ChildError with what everybody says when no version was published for STUCK_SECONDS."""
        version = self.last.get("host", {}).get("version", -1)
        if version != self._progress[1]:
            self._progress = (self.seconds, version)
        if self.seconds - self._progress[0] > STUCK_SECONDS:
            states = {name: status.get("state", status.get("work", "")) for name, status in self.last.items()}
            raise ChildError(f"no version after {version} in {STUCK_SECONDS:.0f} s: {json.dumps(states)[:3000]}")

    def _note(self, quantity: str, name: str, now: float, value: float) -> None:
        self.series[quantity][name].append((now, value))


def disk_bytes(folder: Path) -> int:
    """Bytes allocated below a folder that changes meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def growth(points: list[tuple[float, float]], warm_up: float, window: float) -> float | None:
    """Median of the last window minus that of the window after warm-up; None when the run is too short."""
    end = points[-1][0] if points else 0.0
    early = [value for at, value in points if warm_up <= at < warm_up + window]
    late = [value for at, value in points if at >= end - window]
    if not early or not late or end < warm_up + window:
        return None
    return statistics.median(late) - statistics.median(early)


def churn(fleet: Fleet, stop: threading.Event, visits: list[str]) -> None:
    """A node joins, works and leaves until told to stop; each of a few homes is used again and again."""
    while not stop.is_set():
        name = f"{GUEST}{len(visits) % GUEST_HOMES}"
        guest = fleet.start(name)
        with contextlib.suppress(ChildError):
            guest.wait_for("version", PATIENCE_SECONDS)
            visits.append(name)
        guest.stop()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the soak; returns the figures."""
    with (
        tempfile.TemporaryDirectory(prefix="aurora-soak-") as folder,
        Fleet.open(Path(folder), nodes=NODES, pause=options.pause) as fleet,
    ):
        watch, stop, visits = Watch(fleet), threading.Event(), list[str]()
        guests = threading.Thread(target=churn, args=(fleet, stop, visits), daemon=True)
        if options.churn:
            guests.start()
        try:
            while watch.seconds < options.minutes * 60:
                watch.look()
                say(watch)
                watch.require_progress()
                time.sleep(SAMPLE_SECONDS)
            watch.look()
        finally:
            stop.set()
            if options.churn:
                guests.join(PATIENCE_SECONDS)
        return report(watch, len(visits), options)


def say(watch: Watch) -> None:
    """A line on stderr now and then."""
    if len(watch.series["rss"]["host"]) % 15 == 1:
        version = watch.last.get("host", {}).get("version")
        rss = " ".join(f"{name} {points[-1][1]:.1f}" for name, points in sorted(watch.series["rss"].items()))
        tasks = " ".join(f"{name} {points[-1][1]:.0f}" for name, points in sorted(watch.series["tasks"].items()))
        print(f"{watch.seconds:.0f} s  version {version}  MB: {rss}  tasks: {tasks}", file=sys.stderr, flush=True)


def report(watch: Watch, visits: int, options: argparse.Namespace) -> dict[str, Any]:
    def grown(quantity: str) -> dict[str, float | None]:
        found = {
            name: growth(points, options.warm_up, options.window) for name, points in watch.series[quantity].items()
        }
        return {name: None if value is None else round(value, 3) for name, value in sorted(found.items())}

    host = watch.last["host"]
    nodes = {name: status for name, status in watch.last.items() if name.startswith("node")}
    return {
        "versions": host["version"],
        "minutes": round(watch.seconds / 60, 2),
        "versions_behind": {name: host["version"] - status["version"] for name, status in nodes.items()},
        "digest_mismatches": sum(status["digest_mismatches"] for status in nodes.values()),
        "rss_growth_mb": grown("rss"),
        "open_fds_growth": grown("fds"),
        "tasks_growth": grown("tasks"),
        "disk_growth_mb": grown("disk"),
        "rss_mb": {name: round(points[-1][1], 1) for name, points in sorted(watch.series["rss"].items())},
        "tasks": {name: points[-1][1] for name, points in sorted(watch.series["tasks"].items())},
        "cpu_seconds": {name: round(points[-1][1], 1) for name, points in sorted(watch.series["cpu"].items())},
        "guests": visits,
    }


def render(figures: Mapping[str, Any]) -> str:
    """A table for a person."""
    lines = [
        f"{figures['versions']} versions in {figures['minutes']} min, {figures['guests']} guests came and went",
        "",
    ]
    lines.append(f"{'process':<16}{'rss MB':>8}{'growth':>8}{'fds':>6}{'tasks':>7}{'disk MB':>9}")
    for name, rss in figures["rss_mb"].items():
        cells = [
            figures[key].get(name) for key in ("rss_growth_mb", "open_fds_growth", "tasks_growth", "disk_growth_mb")
        ]
        shown = ["-" if cell is None else f"{cell:.1f}" for cell in cells]
        lines.append(f"{name:<16}{rss:>8.1f}{shown[0]:>8}{shown[1]:>6}{shown[2]:>7}{shown[3]:>9}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="A soak: does anything grow?")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds that the trainer rests between versions")
    parser.add_argument("--churn", action="store_true", help="a node joins and leaves all the time")
    parser.add_argument("--warm-up", type=float, default=WARM_UP_SECONDS, help="seconds")
    parser.add_argument("--window", type=float, default=WINDOW_SECONDS, help="seconds that a median is taken of")
    options = parser.parse_args()
    figures = measure(options)
    print(json.dumps(figures) if options.json else render(figures))


if __name__ == "__main__":
    main()
