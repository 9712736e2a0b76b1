import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_p2p.delta import rice
from aurora_p2p.errors import WireError

relaxed = settings(deadline=None, max_examples=80)
"""No deadline: a kernel's first call compiles it where `make setup` has not."""


@st.composite
def lists(draw: st.DrawFn) -> tuple[list[int], int]:
    width = draw(st.integers(1, 64))
    size = st.integers(0, width).flatmap(lambda bits: st.integers(0, 2**bits - 1))
    return draw(st.lists(size, max_size=60)), width


@relaxed
@given(lists(), st.binary(max_size=9), st.binary(max_size=9))
def test_a_list_reads_back_and_leaves_its_neighbours_alone(
    case: tuple[list[int], int], head: bytes, tail: bytes
) -> None:
    values, width = case
    coded = rice.encode(np.array(values, np.uint64), width)
    decoded, end = rice.decode(head + coded + tail, len(head), len(values), width)
    assert decoded.tolist() == values
    assert end == len(head) + len(coded)


@relaxed
@given(st.binary(max_size=80), st.integers(0, 90), st.integers(0, 2**40), st.integers(1, 64))
def test_any_bytes_decode_or_raise_wire_error(data: bytes, start: int, count: int, width: int) -> None:
    try:
        values, end = rice.decode(data, start, count, width)
    except WireError:
        return
    assert values.size == count
    assert count == 0 or start < end <= len(data)


@pytest.mark.parametrize("mean", [0.05, 0.7, 3, 100, 5000])
def test_the_parameter_is_the_cheapest_of_all(mean: float) -> None:
    values = (np.random.default_rng(3).geometric(1 / (1 + mean), 4000) - 1).astype(np.uint64)
    costs = []
    for k in range(19):
        quotients = values >> np.uint64(k)
        costs.append(int(np.where(quotients < rice.MAX_ZEROS, quotients + 1 + k, rice.MAX_ZEROS + 1 + 19).sum()))
    assert len(rice.encode(values, 19)) == 1 + -(-min(costs) // 8)


def test_one_far_outlier_costs_one_escape_and_not_a_wider_code() -> None:
    values = np.ones(1000, np.uint64)
    plain = len(rice.encode(values, 64))
    values[500] = 2**64 - 1
    assert len(rice.encode(values, 64)) <= plain + 12


def test_the_layout_of_a_list_never_changes() -> None:
    assert rice.encode(np.array([0, 1, 5, 200], np.uint64), 8).hex() == "01cd0000009101"


@relaxed
@given(lists())
def test_every_cut_list_is_refused(case: tuple[list[int], int]) -> None:
    values, width = case
    coded = rice.encode(np.array(values, np.uint64), width)
    for length in range(len(coded)):
        with pytest.raises(WireError):
            rice.decode(coded[:length], 0, len(values), width)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (bytes((19,)) + bytes((1, 0, 0, 0)), 1),  # k is not below the width
        (bytes((0,)) + bytes(40), 1),  # a code that never ends
        (bytes((0, 255)), 9),  # more codes than bits
        (bytes((0, 255)), 2**62),  # and no allocation to find that out
    ],
)
def test_impossible_lists_are_refused(data: bytes, count: int) -> None:
    with pytest.raises(WireError):
        rice.decode(data, 0, count, 19)
