"""How the soak turns samples into growth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.soak import disk_bytes, growth, render

STEADY = [(float(second), 100.0) for second in range(0, 600, 2)]


def test_what_does_not_grow_after_warm_up_has_no_growth() -> None:
    climbing = [(second, value + (50.0 if second < 60 else 0.0)) for second, value in STEADY]
    assert growth(climbing, 60.0, 60.0) == 0.0


def test_a_spike_is_no_growth_and_a_slope_is() -> None:
    spike = [(second, 900.0 if second in (70.0, 590.0) else value) for second, value in STEADY]
    assert growth(spike, 60.0, 60.0) == 0.0
    slope = [(second, second / 100) for second, _ in STEADY]
    assert growth(slope, 60.0, 60.0) == pytest.approx(4.78, abs=0.05)


def test_a_run_shorter_than_warm_up_and_window_says_nothing() -> None:
    assert growth(STEADY[:50], 60.0, 60.0) is None
    assert growth([], 60.0, 60.0) is None


def test_disk_counts_what_is_allocated_and_survives_what_vanishes(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(os.urandom(10_000))
    (tmp_path / "gone").symlink_to("nowhere")
    assert 8_192 <= disk_bytes(tmp_path) <= 32_768
    assert disk_bytes(tmp_path / "missing") == 0


def test_the_table_shows_what_a_process_does_not_have_as_a_dash() -> None:
    figures = {
        "versions": 3,
        "minutes": 1.0,
        "guests": 0,
        "rss_mb": {"host": 100.0, "host-bulk": 40.0},
        "rss_growth_mb": {"host": 1.5, "host-bulk": None},
        "open_fds_growth": {"host": 0, "host-bulk": 0},
        "tasks_growth": {"host": 0},
        "disk_growth_mb": {"host": 2.0},
    }
    lines = render(figures).splitlines()
    assert lines[-2].split() == ["host", "100.0", "1.5", "0.0", "0.0", "2.0"]
    assert lines[-1].split() == ["host-bulk", "40.0", "-", "0.0", "-", "-"]
