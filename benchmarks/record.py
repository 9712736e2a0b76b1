"""`python -m benchmarks.record NAME [--quick]`: run a benchmark and keep its figures in benchmarks/results/NAME.json.

Beside the figures stand the command, the date and the machine: docs/benchmarks.md is rendered from these files
(`python -m tests.docs.benchmarks`). `--report FILE` keeps what a run printed with --json earlier, on this machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

RESULTS = Path(__file__).parent / "results"
NAMES = {
    "codec": [],
    "swarm_sim": [],
    "swarm_net": [],
    "wan": ["--path", "all"],
    "bulk": [],
    "crash": [],
    "soak": [],
}
"""Each benchmark, and what its whole run needs beside --json. swarm_net and wan need root."""
QUICK = ("codec", "bulk")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record", description=__doc__)
    parser.add_argument("name", choices=NAMES, help="which benchmark")
    parser.add_argument("--quick", action="store_true", help="on less data")
    parser.add_argument("--report", metavar="FILE", type=Path, help="the JSON that a run has printed; nothing is run")
    options = parser.parse_args()
    if options.quick and options.name not in QUICK:
        parser.error(f"--quick is for {' and '.join(QUICK)}: {options.name} has one size")
    words = ["-m", f"benchmarks.{options.name}", "--json", *NAMES[options.name], *["--quick"] * options.quick]
    printed = options.report.read_text() if options.report else run(words)
    kept = {"command": " ".join(["python", *words]), "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{options.name}.json").write_text(json.dumps(kept | {"report": json.loads(printed)}, indent=1) + "\n")


def run(words: list[str]) -> str:
    """What the benchmark prints. Raises CalledProcessError when it fails."""
    return subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def machine() -> dict[str, Any]:
    """What one needs to know of this machine to read a figure of it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
