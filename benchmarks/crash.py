"""Break a running swarm in hundreds of named places, one after the other, and see whether it mends itself.

    python -m benchmarks.crash --json [--cases 231] [--seed 1] [--jobs 1] [--only TEXT]

Each job keeps one fleet of real processes alive (fleet.py) and runs its share of the cases over it (crash_cases.py): a
process runs into its fault at a seeded hit, is started again where a service manager would do that, and the swarm has
to recover by itself: every node serves a version published after the fault, with a full digest audit, and a training
step has been completed. Recovery counts from the restart or SIGCONT (a replaced child, a refusing disk: the fault).

    cases, unreached              cases run; those whose point was not reached (must be 0)
    wrong_digests                 audits that found other weights than the manifest names
    lost, doubled                 acknowledged samples not trained on; samples that count twice (crash_books.py)
    stuck                         cases not recovered within STUCK_SECONDS, or in which another process died
    max_recovery_seconds, faults  the slowest recovery; per kind of fault its cases, slowest recovery and failures

Tokens and their speed are simulated; weights, deltas, signatures, disks and sockets are real. Ctrl-C reports what is
done.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aurora_p2p.delta import warm
from aurora_p2p.local.cli import run_cli
from aurora_p2p.local.clock import boottime
from benchmarks.crash_cases import Case, draw
from benchmarks.crash_run import CrashRun, Outcome

NODES = 3
PERCENTILE = 95


@dataclass
class Report:
    """What all jobs found. Threads add to it under the lock."""

    started: float = field(default_factory=boottime)
    outcomes: list[Outcome] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    findings: dict[str, list[str]] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        with self.lock:
            self.outcomes.append(outcome)
            took = f"{outcome.recovery:.1f} s" if outcome.recovery is not None else "-"
            text = f"{len(self.outcomes):>4}  {outcome.verdict:<10} {took:>7}  {outcome.case.fault.name}"
            print(f"{text} ({outcome.case.program}, hit {outcome.case.hit})", file=sys.stderr, flush=True)
            for line in outcome.detail:
                print(f"        {line}", file=sys.stderr, flush=True)

    def find(self, kind: str, lines: Sequence[str]) -> None:
        with self.lock:
            self.findings.setdefault(kind, []).extend(lines)

    def figures(self) -> dict[str, Any]:
        recoveries = sorted(outcome.recovery for outcome in self.outcomes if outcome.recovery is not None)
        counted = {kind: len(self.findings.get(kind, [])) for kind in ("wrong_digests", "lost", "doubled", "stale")}
        return {
            "cases": len(self.outcomes),
            "unreached": sum(outcome.verdict == "unreached" for outcome in self.outcomes),
            **counted,
            "stuck": sum(outcome.verdict in ("stuck", "died") for outcome in self.outcomes),
            "max_recovery_seconds": round(max(recoveries, default=0.0), 1),
            "p50_recovery_seconds": round(statistics.median(recoveries), 1) if recoveries else 0.0,
            "p95_recovery_seconds": round(recoveries[len(recoveries) * PERCENTILE // 100], 1) if recoveries else 0.0,
            "receipts_checked": sum(int(line) for line in self.findings.get("receipts", [])),
            "wall_seconds": round(boottime() - self.started, 1),
            "engine": "simulated",
            "faults": self._by_fault(),
            "failures": [outcome.as_failure() for outcome in self.outcomes if outcome.verdict != "recovered"],
            "findings": {kind: lines[:20] for kind, lines in self.findings.items() if kind != "receipts" and lines},
        }

    def _by_fault(self) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for outcome in self.outcomes:
            row = table.setdefault(outcome.case.fault.name, {"cases": 0, "max_recovery_seconds": 0.0, "failed": 0})
            row["cases"] += 1
            row["max_recovery_seconds"] = round(max(row["max_recovery_seconds"], outcome.recovery or 0.0), 1)
            row["failed"] += outcome.verdict != "recovered"
        return dict(sorted(table.items()))


def run_job(folder: Path, cases: list[Case], report: Report, stopped: threading.Event) -> None:
    """One fleet, from start to end."""
    with CrashRun.open(folder, cases, NODES) as run:
        try:
            for case in cases:
                if stopped.is_set():
                    return
                report.add(run.carry_out(case))
        finally:
            run.read_logs()
            for kind, lines in run.findings().items():
                report.find(kind, lines)


def run_all(cases: Sequence[Case], jobs: int, report: Report, keep: Path | None) -> None:
    """Every job in a thread: what they do is wait for processes. keep: where homes and logs stay."""
    stopped = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    with ExitStack() as stack, ThreadPoolExecutor(jobs) as threads:
        folder = keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="aurora-crash-"))
        shares = [list(cases[number::jobs]) for number in range(jobs)]
        running = [
            threads.submit(run_job, Path(folder) / str(number), share, report, stopped)
            for number, share in enumerate(shares)
            if share
        ]
        for job in running:
            job.result()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout")
    parser.add_argument("--cases", type=int, default=231, metavar="N", help="how many (default 231: each kind thrice)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of order, hits and nodes")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="fleets beside each other")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N cases of this seed")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave homes and logs in this new folder")
    parser.add_argument("--only", default="", metavar="TEXT", help="only faults whose name holds this")
    options = parser.parse_args()
    cases = draw(options.skip + options.cases, options.seed, NODES, options.only)[options.skip :]
    warm.main()  # once here, instead of in a dozen processes at the same time
    report = Report()
    run_all(cases, options.jobs, report, options.keep)
    figures = report.figures()
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print("\n".join(f"{key:<24} {value}" for key, value in figures.items() if not isinstance(value, dict | list)))
    failed = figures["wrong_digests"] + figures["lost"] + figures["doubled"] + figures["stuck"] + figures["unreached"]
    return 1 if failed else 0


if __name__ == "__main__":
    run_cli(main)
