"""The command lines themselves."""

from __future__ import annotations

import statistics
import time

import pytest

from tests.e2e.world import run_to_end

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("program", ["aurora-node", "aurora-host", "aurora-bootstrap"])
def test_help_answers_at_once_and_shows_an_example(program: str) -> None:
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        ended = run_to_end(program, "--help")
        seconds.append(time.perf_counter() - started)
        assert (ended.status, ended.err) == (0, "")
        assert "examples:" in ended.out
    print(f"{program} --help: {statistics.median(seconds):.2f} s")
    assert statistics.median(seconds) < 2.0, "the figure is 0.5 s; a test machine may be loaded"
