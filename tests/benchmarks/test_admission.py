"""benchmarks.admission with few nodes: everything is admitted, and the report has the promised keys."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_report_has_its_keys_and_every_result_was_admitted() -> None:
    command = [sys.executable, "-m", "benchmarks.admission", "--json", "--nodes", "4", "--tokens", "16"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert {"admit_batched_per_s", "single_over_raw_commit", "grants_per_s", "p99_ms"} <= report.keys()
    assert report["admitted"] == 4 * 2 * 8 / 2  # the other half arrives at random, for the latency
    assert all(report[key] > 0 for key in ("admit_batched_per_s", "grants_per_s", "single_over_raw_commit", "p99_ms"))
