import numpy as np
import pytest

from aurora_p2p.delta.tensors import Bits
from aurora_p2p.delta.ulp import crosses_sign, ordered, step_between, step_from


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_the_ordered_key_is_its_own_inverse_and_misses_no_pattern(kind: type[np.unsignedinteger]) -> None:
    every = np.arange(np.iinfo(kind).max + 1, dtype=kind)
    keys = ordered(every)
    assert np.array_equal(ordered(keys), every)
    assert np.unique(keys).size == every.size


def test_the_ordered_key_orders_floats_as_numbers() -> None:
    floats = np.array([-np.inf, -2.5, -1e-7, -0.0, 0.0, 1e-7, 1.0, 2.5, np.inf], np.float16)
    keys = ordered(floats.view(np.uint16)).view(np.int16)
    assert np.all(np.diff(keys) > 0)
    assert keys[3] == -1
    assert keys[4] == 0


@pytest.mark.parametrize("ulp", [True, False])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_steps_lead_back_to_the_bits_they_came_from(kind: type[np.unsignedinteger], ulp: bool) -> None:
    top = np.iinfo(kind).max
    edges = np.array([0, 1, 2, top // 2 - 1, top // 2, top // 2 + 1, top - 1, top], kind)
    old, new = (side.ravel() for side in np.meshgrid(edges, edges))
    old, new = old[old != new], new[old != new]
    negative, magnitude = step_between(old, new, ulp=ulp)
    assert magnitude.min() >= 1
    assert int(magnitude.max()) <= top // 2 + 1
    assert np.array_equal(step_from(old, negative, magnitude, ulp=ulp), new)


def test_step_kinds_differ_in_magnitude_only_across_the_sign_bit() -> None:
    def magnitudes(old: Bits, new: Bits) -> tuple[list[int], list[int]]:
        return step_between(old, new, ulp=True)[1].tolist(), step_between(old, new, ulp=False)[1].tolist()

    old = np.array([0x3C00, 0xBC00, 0x0001], np.uint16)
    same_side, across = np.array([0x3C02, 0xBBFF, 0x7FFF], np.uint16), np.array([0x3C02, 0xBBFF, 0x8001], np.uint16)
    assert not crosses_sign(old, same_side)
    assert magnitudes(old, same_side)[0] == magnitudes(old, same_side)[1]
    assert crosses_sign(old, across)
    assert magnitudes(old, across) == ([2, 1, 3], [2, 1, 0x8000])
