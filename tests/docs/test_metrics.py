"""docs/metrics.md names every metric of every program, with its kind and meaning, and no other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from aurora_bootstrap.metrics import BOOTSTRAP_METRICS
from aurora_node.metrics import NODE_METRICS
from aurora_p2p.host.metrics import HOST_METRICS
from aurora_p2p.local.metrics import Metric

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
PROGRAMS = {"aurora-host": HOST_METRICS, "aurora-node": NODE_METRICS, "aurora-bootstrap": BOOTSTRAP_METRICS}
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (\w*) \| (.+?) \|$", re.MULTILINE)
UNITS = ("seconds", "bytes", "total")


def rows(program: str) -> list[tuple[str, ...]]:
    """The table under a program's heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {program}\n")[1].split("\n## ")[0]
    return ROW.findall(section)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_page_lists_exactly_the_metrics_of_a_program(program: str) -> None:
    expected = [(metric.name, metric.kind, metric.label, metric.meaning) for metric in PROGRAMS[program]]
    assert rows(program) == expected


@pytest.mark.parametrize("metrics", PROGRAMS.values(), ids=PROGRAMS)
def test_names_are_unique_prefixed_and_say_what_they_count(metrics: Sequence[Metric]) -> None:
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names)
    for metric in metrics:
        assert re.fullmatch(r"aurora_[a-z0-9_]+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert not re.search(r"_(ms|kb|mb|mib|minutes)(_|$)", metric.name), f"{metric.name} is not in a base unit"
        assert metric.meaning.endswith(".")
