import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.lease.share import shares, updated_rate
from aurora_p2p.types import PeerId

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


def test_twice_the_speed_gets_twice_the_samples():
    assert shares(300, {A: 5000.0, B: 2500.0}) == {A: 200, B: 100}


def test_the_largest_remainders_get_the_samples_that_do_not_divide():
    assert shares(10, {A: 1.0, B: 1.0, C: 1.0}) == {A: 4, B: 3, C: 3}
    assert shares(7, {A: 60.0, B: 30.0, C: 10.0}) == {A: 4, B: 2, C: 1}


def test_an_unmeasured_node_counts_as_the_mean_of_the_others():
    assert shares(60, {A: 100.0, B: 300.0, C: None}) == {A: 10, B: 30, C: 20}


@pytest.mark.parametrize("rate", [None, 0.0])
def test_without_any_speed_the_split_is_equal(rate):
    assert shares(9, {A: rate, B: rate, C: rate}) == {A: 3, B: 3, C: 3}


def test_nobody_gets_nothing():
    assert shares(9, {}) == {}


def test_who_still_holds_samples_gets_so_many_less():
    assert shares(30, {A: 10.0, B: 10.0}, {A: 10}) == {A: 10, B: 20}
    assert shares(30, {A: 20.0, B: 10.0}, {B: 6}) == {A: 24, B: 6}


def test_who_holds_more_than_its_part_of_everything_gets_none():
    assert shares(10, {A: 10.0, B: 10.0, C: 10.0}, {A: 50}) == {A: 0, B: 5, C: 5}


def test_a_node_without_speed_gets_none_beside_one_that_has():
    assert shares(10, {A: 10.0, B: 0.0}) == {A: 10, B: 0}


rates = st.dictionaries(
    st.sampled_from([PeerId(letter) for letter in "abcdefgh"]),
    st.none() | st.floats(min_value=0, max_value=1e12),
    min_size=1,
)


@given(st.integers(0, 10**6), rates)
def test_shares_add_up_and_are_within_one_of_the_exact_part(total, speeds):
    split = shares(total, speeds)
    measured = [speed for speed in speeds.values() if speed is not None]
    mean = sum(measured) / len(measured) if measured else 1.0
    whole = sum(mean if speed is None else speed for speed in speeds.values())
    assert sum(split.values()) == total
    if whole > 0:
        for peer, speed in speeds.items():
            assert abs(split[peer] - total * (mean if speed is None else speed) / whole) <= 1 + 1e-6


@given(
    st.integers(0, 5000),
    st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(st.floats(1.0, 1e5), st.integers(0, 500)), min_size=1),
)
def test_with_what_they_hold_all_are_done_within_one_sample_of_each_other(total, nodes):
    speeds, held = ({PeerId(peer): pair[index] for peer, pair in nodes.items()} for index in (0, 1))
    split = shares(total, speeds, held)
    assert sum(split.values()) == total
    assert min(split.values()) >= 0
    busy = [peer for peer in speeds if split[peer] > 0]
    for peer in busy:
        before = (held[peer] + split[peer] - 1) / speeds[peer]  # without its last sample
        assert all(before <= (held[other] + split[other] + 1) / speeds[other] + 1e-6 for other in speeds)


def test_the_moving_average_keeps_four_fifths_of_the_past():
    assert updated_rate(None, 500, 5.0) == 100.0
    assert updated_rate(100.0, 200, 1.0) == pytest.approx(120.0)


def test_a_lease_three_times_as_long_counts_as_three():
    thrice = updated_rate(updated_rate(updated_rate(100.0, 200, 1.0), 200, 1.0), 200, 1.0)
    assert updated_rate(100.0, 600, 3.0, 3.0) == pytest.approx(thrice)


def test_a_result_that_came_at_once_is_no_infinite_speed():
    assert updated_rate(None, 1, 0.0) == 1000.0
