"""The segment swarm between real processes on lines of limited rate, beside what else could distribute an artifact.

    python -m benchmarks.swarm_net --json [--only h8|het8|reg44|killed] [--policy NAME] [--trials N]

Root, Linux, `ip` and `tc`. A host's and 8 nodes' data planes run in network namespaces (aurora_p2p.testing.netlab); an
artifact of 60 MB in segments of 256 KiB goes from the host to all. Rivals: a direct fan-out, one relay per region and a
cut-through chain of the same code (swarm_net_plans.py), and a BitTorrent client (swarm_net_torrent.py).

Times are from the start of the publication to the last and the median node, durably stored, as multiples of the bound
(swarm_net_scenarios.py) with the payload rate that a plain TCP connection reached in the same laboratory. Medians of
the trials, each a fresh artifact in a running swarm; fan-out and relay, which nothing random happens to, run once.
CPU is that of all processes together, per GB delivered; it includes the kernel's work for their sockets.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aurora_p2p.errors import AuroraError, UsageError
from aurora_p2p.testing.netlab import Lab, open_lab, require_tools
from aurora_p2p.testing.netrate import Calibration, calibrate
from benchmarks import swarm_net_kills, swarm_net_torrent
from benchmarks.swarm_net_fleet import Fleet, Trial
from benchmarks.swarm_net_scenarios import SCENARIOS, Scenario

SIZE = 60_000_000
POLICIES = ("ours", "direct", "relay", "chain", "libtorrent", "libtorrent_tuned")
ONCE = ("direct", "relay")
KILLED = "killed"
KILL_SCENARIO = "reg44"
SURVIVORS = ("ours", "relay", "chain")
PATIENCE_FACTOR = 12.0
"""Of the bound: a direct fan-out to 8 nodes takes 8."""
MEMORY = Path("/dev/shm")  # noqa: S108 (a folder of our own is made inside)
"""Homes are kept in memory where there is room, for every policy: the network is measured, not the disk."""


def main(words: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the laboratory is taken down
    try:
        require_tools()
        report = measure(options)
    except (AuroraError, ExceptionGroup) as error:
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, AuroraError) and error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return getattr(error, "exit_status", 1)
    print(json.dumps(report, indent=1) if options.json else table(report))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swarm_net", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--only", choices=(*SCENARIOS, KILLED), help="one network, or what a killed node costs")
    parser.add_argument("--policy", choices=POLICIES, help="one policy; default all")
    parser.add_argument("--role", choices=swarm_net_kills.ROLES, help="with --only killed: one role; default all")
    parser.add_argument("--trials", type=int, default=3, metavar="N", help="artifacts per policy (default 3)")
    parser.add_argument("--megabytes", type=float, default=SIZE / 1e6, help="size of an artifact (default 60)")
    return parser


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything the options ask for. Raises AuroraError."""
    size = int(options.megabytes * 1e6)
    if options.trials < 1 or size < 1:
        raise UsageError("--trials and --megabytes must be above 0")
    policies = (options.policy,) if options.policy else POLICIES
    if options.only != KILLED and any(policy.startswith("libtorrent") for policy in policies):
        swarm_net_torrent.require()
    report: dict[str, Any] = {"artifact_bytes": size, "scenarios": {}}
    for name, scenario in SCENARIOS.items():
        if options.only in (None, name):
            report["scenarios"][name] = _scenario(scenario, policies, size, options.trials)
    if options.only in (None, KILLED):
        report |= _killed(size, (options.role,) if options.role else swarm_net_kills.ROLES, policies)
    return report


def _scenario(scenario: Scenario, policies: Sequence[str], size: int, trials: int) -> dict[str, Any]:
    with open_lab(scenario.lines, cut=scenario.cut) as lab:
        rate = _calibrate(lab, scenario)
        bound = scenario.bound(size, rate.payload_ratio)
        report: dict[str, Any] = {"payload_ratio": rate.payload_ratio, "bound_seconds": bound}
        for policy in policies:
            count = 1 if policy in ONCE else trials
            with tempfile.TemporaryDirectory(dir=_home()) as folder, Fleet.open(lab, Path(folder), policy) as fleet:
                done = [fleet.transfer(size, patience=PATIENCE_FACTOR * bound) for _ in range(count)]
            report[policy] = figures(done, bound, rate)
            _progress(policy, report[policy])
        return report


def figures(trials: Sequence[Trial], bound: float, rate: Calibration) -> dict[str, Any]:
    """Medians over the trials; nothing but `complete` when one of them left a node without the artifact."""
    if not all(trial.complete for trial in trials):
        return {"complete": False, "nodes_done": [len(trial.seconds) for trial in trials]}
    median = statistics.median
    return {
        "complete": True,
        "seconds": median(trial.last for trial in trials),
        "last_over_bound": median(trial.last for trial in trials) / bound,
        "median_over_bound": median(trial.median for trial in trials) / bound,
        "origin_copies": median(trial.origin_copies for trial in trials),
        "origin_line_copies": median(trial.wire_copies for trial in trials) / rate.wire_ratio,
        "cpu_s_per_gb": median(trial.cpu_per_gb for trial in trials),
        "each_over_bound": [trial.last / bound for trial in trials],
        "machine_busy": median(trial.machine_busy for trial in trials),
    }


def _killed(size: int, roles: Sequence[str], policies: Sequence[str]) -> dict[str, Any]:
    scenario = SCENARIOS[KILL_SCENARIO]
    with open_lab(scenario.lines, cut=scenario.cut) as lab:
        rate = _calibrate(lab, scenario)
        bound = scenario.bound(size, rate.payload_ratio)
        with tempfile.TemporaryDirectory(dir=_home()) as folder:
            detail = swarm_net_kills.extra_seconds(lab, Path(folder), size, roles) if "ours" in policies else {}
        completes = {}
        for policy in [policy for policy in SURVIVORS if policy in policies]:
            with tempfile.TemporaryDirectory(dir=_home()) as folder:
                completes[policy] = swarm_net_kills.completes(lab, Path(folder), size, policy, bound)
        extra = {role: detail[role]["worst"] for role in roles if role in detail}
        return {"killed_extra_seconds": extra, "killed_completes": completes, "killed_cases": detail}


def _calibrate(lab: Lab, scenario: Scenario) -> Calibration:
    node, mbit = scenario.narrowest
    return calibrate(lab, 0, node, mbit, time.monotonic)


def _home() -> Path | None:
    return MEMORY if MEMORY.is_dir() else None


def _progress(policy: str, one: dict[str, Any]) -> None:
    print(f"{policy}: {one.get('last_over_bound', 'not complete')}", file=sys.stderr, flush=True)


def table(report: dict[str, Any]) -> str:
    """For reading: a line for each scenario and policy."""
    lines = [f"{'':24} last/B  median/B  origin copies  CPU s/GB"]
    for name, scenario in report["scenarios"].items():
        for policy in [policy for policy in POLICIES if policy in scenario]:
            one = scenario[policy]
            if not one["complete"]:
                lines.append(f"{name + ' ' + policy:24} not complete")
                continue
            values = (one["last_over_bound"], one["median_over_bound"], one["origin_copies"], one["cpu_s_per_gb"])
            lines.append("{:24} {:6.2f}  {:8.2f}  {:13.2f}  {:8.1f}".format(f"{name} {policy}", *values))
    for key in ("killed_extra_seconds", "killed_completes"):
        lines += [f"{key} {name}: {value}" for name, value in report.get(key, {}).items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
