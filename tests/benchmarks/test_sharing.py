"""benchmarks.sharing on one seed: the promised keys, the same figures each time, and what its yardsticks mean."""

from __future__ import annotations

import pytest

from benchmarks import sharing
from benchmarks.sharing import MIXES, Mix, ideal_seconds, simulate, uniform_seconds

EVEN = [lambda now: 100.0, lambda now: 50.0]


def test_the_ideal_is_what_all_machines_make_together() -> None:
    assert ideal_seconds([30] * 10, EVEN, 7.0) == pytest.approx(2.0)


def test_a_uniform_split_waits_for_the_slowest_machine() -> None:
    assert uniform_seconds([30] * 10, EVEN, 7.0) == pytest.approx(3.0)


def test_what_a_dead_machine_left_of_a_uniform_split_is_done_by_the_others() -> None:
    dying = [lambda now: 100.0 if now < 0.5 else 0.0, lambda now: 50.0]
    done = 5 * 0.6 + 4 * 0.6  # one of the first five was done before; the other machine does the rest after its own
    assert uniform_seconds([30] * 10, dying, 0.0) == pytest.approx(done)


def test_an_ideal_split_loses_only_what_a_dead_machine_would_have_made() -> None:
    dying = [lambda now: 100.0 if now < 0.5 else 0.0, lambda now: 50.0]
    assert ideal_seconds([30] * 10, dying, 0.0) == pytest.approx(0.5 + (300 - 75) / 50)


@pytest.mark.slow
def test_the_report_has_a_figure_of_both_splits_for_every_mix_and_says_that_it_is_simulated() -> None:
    report = sharing.measure(list(MIXES), 1)
    assert report["simulated"] is True
    assert set(report["mixes"]) == {"2x", "3x", "drift", "death", "a100_l40"}
    for figures in report["mixes"].values():
        assert 1.0 <= figures["ours_over_ideal"] < figures["uniform_over_ideal"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    mix = Mix(MIXES["3x"].speeds, steps=1)
    assert simulate(mix, 1) == simulate(mix, 1) != simulate(mix, 2)
