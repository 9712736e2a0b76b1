"""The figures in the documents are those that a run printed, and a run prints all that is promised."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.record import NAMES
from tests.docs.benchmarks import CODES, PAGE, PART, PARTS, RESULTS, ROOT, render

DATASETS = ("rl1e-6", "rl3e-6", "rl1e-5", "sft1e-4", "synthetic")
PER_DATASET = (
    "changed_ratio",
    "bound",
    *(f"bits_per_change.{code}" for code in CODES),
    *(f"mb_per_8b.{code}" for code in CODES),
    "encode_over_memcpy",
    "apply_over_memcpy",
)
PROMISED = (
    *(f"datasets.{name}.{key}" for name in DATASETS for key in PER_DATASET),
    "thread_scaling.encode",
    "thread_scaling.apply",
    "encode_over_python_varint",
    "mismatches_after_100.ours",
    "mismatches_after_100.additive",
    "peak_extra_mb.encode",
    "peak_extra_mb.apply",
    "peak_extra_mb.squash",
    "fuzz.inputs",
    "fuzz.failures",
)


def numbers(report: Any, name: str = "") -> Iterator[str]:
    """The path of every number in a report."""
    if isinstance(report, dict):
        for key, value in report.items():
            yield from numbers(value, f"{name}.{key}" if name else key)
    elif isinstance(report, int | float):
        yield name


def test_the_tables_are_rendered_from_the_kept_results() -> None:
    assert set(PARTS) == {match[1] for match in PART.finditer(PAGE.read_text())}
    assert PAGE.read_text() == render(PAGE.read_text()), "run `python -m tests.docs.benchmarks`"


def test_every_kept_result_says_how_when_and_where_it_was_measured() -> None:
    kept = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    assert set(kept) == {of for of, _ in PARTS.values()}
    for name, result in kept.items():
        words = ["python", "-m", f"benchmarks.{name}", "--json", *NAMES[name]]
        assert result["command"].removesuffix(" --quick") == " ".join(words)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"])
        assert all(result["machine"].values())


@pytest.mark.slow  # a minute of work
@pytest.mark.alone
def test_the_codec_benchmark_prints_every_promised_figure_and_finds_nothing_wrong() -> None:
    words = [sys.executable, "-m", "benchmarks.codec", "--json", "--quick"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert sorted(set(PROMISED) - set(numbers(report))) == []
    assert (report["mismatches_after_100"]["ours"], report["fuzz"]["failures"]) == (0, 0)
    assert report["mismatches_after_100"]["ours_wrong_digests"] == 0
