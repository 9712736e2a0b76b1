import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_p2p.delta.digest import EMPTY, RunningDigest, full_digest
from aurora_p2p.delta.tensors import Bits, bits_dtype, tensor_id
from aurora_p2p.errors import ShapeError
from aurora_p2p.types import TensorSpec

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15
relaxed = settings(deadline=None, max_examples=60)


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def by_the_book(checkpoint: list[tuple[TensorSpec, Bits]]) -> bytes:
    """The formula of the module's docstring in plain integers."""
    lanes = [0, 0, 0, 0]
    for spec, bits in checkpoint:
        elements = bits.view(np.uint32) if bits.itemsize == 8 else bits
        for index, pattern in enumerate(elements.tolist()):
            row, column = divmod(index, 4096)
            for lane in range(4):
                key = mix((4096 * lane + column + 1) * STEP & MASK) & 0xFFFFFFFF | 1
                weight = mix(tensor_id(spec) + (4 * row + lane + 1) * STEP & MASK) | 1
                lanes[lane] += weight * key * pattern
    return b"".join((lane & MASK).to_bytes(8, "little") for lane in lanes)


def test_the_kernel_computes_the_documented_formula_for_every_dtype(every_dtype) -> None:
    expected = by_the_book([(spec, every_dtype.new[spec.name]) for spec in every_dtype.specs])
    assert full_digest(every_dtype.specs, every_dtype.new) == expected


def test_the_digest_of_known_bits_never_changes() -> None:
    spec = TensorSpec("w", "BF16", (4,))
    bits = {"w": np.array([0x3F80, 0x8000, 0x7FC1, 0], np.uint16)}
    assert full_digest((spec,), bits).hex() == "812fe6e67918fca5cb2b8518a3a443791b4e34e1528b96ebbbc29ab7260bb204"
    assert full_digest((), {}) == full_digest((TensorSpec("e", "F32", (0,)),), {"e": np.empty(0, np.uint32)}) == EMPTY


def test_changes_alone_keep_the_digest_current_in_any_order(every_dtype) -> None:
    step = every_dtype
    running = RunningDigest(full_digest(step.specs, step.base))
    for spec in reversed(step.specs):
        where = np.flatnonzero(step.base[spec.name] != step.new[spec.name])
        for half in (where[where.size // 2 :], where[: where.size // 2]):
            running.change(spec, half, step.base[spec.name][half], step.new[spec.name][half])
    assert running.value() == full_digest(step.specs, step.new)


def test_pieces_add_up_to_the_whole_across_rows() -> None:
    spec = TensorSpec("w", "U8", (100_003,))
    bits = np.random.default_rng(0).integers(0, 256, 100_003, np.uint8)
    running = RunningDigest(EMPTY)
    for start, end in ((70_000, 100_003), (0, 32_769), (32_769, 70_000)):
        running.extend(spec, start, bits[start:end])
    assert running.value() == full_digest((spec,), {"w": bits})


@relaxed
@given(st.lists(st.integers(0, MASK), min_size=2, max_size=8), st.data())
def test_one_flipped_bit_or_two_swapped_elements_change_every_lane(patterns: list[int], data: st.DataObject) -> None:
    spec = TensorSpec("w", "U64", (len(patterns),))
    bits = np.array(patterns, np.uint64)
    place = data.draw(st.integers(0, len(patterns) - 1))
    flipped = bits.copy()
    flipped[place] ^= np.uint64(1 << data.draw(st.integers(0, 63)))
    others = [flipped]
    if bits[place] != bits[place - 1]:
        swapped = bits.copy()
        swapped[[place, place - 1]] = swapped[[place - 1, place]]
        others.append(swapped)
    before = full_digest((spec,), {"w": bits})
    for other in others:
        after = full_digest((spec,), {"w": other})
        assert all(before[lane : lane + 8] != after[lane : lane + 8] for lane in (0, 8, 16, 24))


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F64"])
def test_a_zero_and_a_negative_zero_that_change_places_show(dtype: str) -> None:
    kind = bits_dtype(dtype)
    sign = 1 << kind.itemsize * 8 - 1
    spec = TensorSpec("w", dtype, (2,))
    orders = [np.array(pair, kind) for pair in ((0, sign), (sign, 0))]
    first, second = (full_digest((spec,), {"w": bits}) for bits in orders)
    assert all(first[lane : lane + 8] != second[lane : lane + 8] for lane in (0, 8, 16, 24))


def test_name_dtype_and_shape_are_part_of_the_state() -> None:
    bits = np.arange(6, dtype=np.uint16)
    specs = [
        TensorSpec("w", "BF16", (6,)),
        TensorSpec("v", "BF16", (6,)),
        TensorSpec("w", "F16", (6,)),
        TensorSpec("w", "BF16", (2, 3)),
    ]
    assert len({full_digest((spec,), {spec.name: bits}) for spec in specs}) == 4


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ShapeError):
        RunningDigest(b"short")
    with pytest.raises(ShapeError):
        RunningDigest(EMPTY).change(
            TensorSpec("w", "U8", (9,)), np.arange(3), np.zeros(3, np.uint8), np.zeros(2, np.uint8)
        )
