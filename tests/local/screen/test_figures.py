"""Figures for a person: short, never longer than promised, exact at the ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.local.screen import age, count, coverage, rate, segment_bar, segment_map, share, short, size, sparkline


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (999.6, "1.0k"),
        (1_234, "1.2k"),
        (9_960, "10k"),
        (34_500_000, "34M"),
        (-5, "-5"),
    ],
)
def test_a_count_has_at_most_three_digits_and_a_unit(number, text):
    assert count(number) == text


def test_sizes_and_rates_are_decimal_and_unknown_ones_are_a_dash():
    assert (size(512), size(1_000_000), rate(1_240_000.0)) == ("512 B", "1.0 MB", "1.2 MB/s")
    assert (size(None), rate(float("nan")), count(float("inf")), age(None)) == ("-", "-", "-", "-")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.9, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (7260, "2 h 1 min"),
        (781_200, "9 d 1 h"),
        (-3, "0 s"),
    ],
)
def test_an_age_names_its_two_largest_units(seconds, text):
    assert age(seconds) == text


def test_a_share_is_whole_only_when_nothing_is_missing():
    assert (share(999, 1000), share(1000, 1000), share(0, 0)) == ("99 %", "100 %", "-")


def test_a_sparkline_shows_the_last_values_between_zero_and_their_maximum():
    assert sparkline([0, 1, 2, 4, 8], 4) == "▁▂▄█"
    assert sparkline([None, 0.0], 9) == " ▁"
    assert sparkline([5], 0) == sparkline([], 5) == ""


def test_a_segment_map_has_a_full_block_only_where_every_segment_is_held():
    assert segment_map(0b1111, 8, 2) == "█·"
    assert segment_map(0b0111, 4, 1) == "▓"


def test_a_single_segment_of_many_is_not_shown_as_nothing():
    assert segment_map(1, 1000, 10)[0] == "░"


def test_the_short_form_of_a_peer_id_cannot_steer_a_terminal():
    assert short("12D3KooW" + "\x1b]0;x\x07ab") == "?]0;x?ab"


@given(st.integers(0, 2**300 - 1), st.integers(1, 300), st.integers(1, 220))
def test_a_map_is_as_wide_as_asked_and_full_exactly_when_all_is_held(have, total, width):
    have &= (1 << total) - 1
    shown = segment_map(have, total, width)
    assert len(shown) == width
    assert (set(shown) == {"█"}) == (have == (1 << total) - 1)
    assert (set(shown) == {"·"}) == (have == 0)


@given(st.integers(0, 2**200 - 1), st.integers(1, 200), st.integers(1, 80), st.integers(1, 220))
def test_a_coverage_may_be_stretched_and_shrunk(have, total, cells, width):
    percents = coverage(have & ((1 << total) - 1), total, cells)
    assert len(percents) == min(cells, total)
    assert all(0 <= percent <= 100 for percent in percents)
    assert len(segment_bar(percents, width)) == width


@given(st.floats(-1e17, 1e17) | st.sampled_from([float("nan"), float("inf"), None]))
def test_figures_of_any_number_stay_short(number):
    for text in (count(number), size(number), rate(number), age(number)):
        assert len(text) <= 24
        assert text.isprintable()
