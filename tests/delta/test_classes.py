"""The class coder: any change of any 16-bit pattern under any class map, and any bytes."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_p2p.delta.classes import block
from aurora_p2p.delta.classes.map import MAX_CLASSES, ONE_CLASS, ClassMap, best_map, learn, sampled
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, Bits
from aurora_p2p.errors import WireError

relaxed = settings(deadline=None, max_examples=150)
maps = st.sets(st.integers(1, 255), max_size=7).map(lambda steps: ClassMap(bytes(sorted(steps))))
EDGES = [1, 2, 63, 64, 65, 127, 128, 129, 1000, 4096, 4097]


def weights(rng: np.random.Generator, elements: int, kind: str) -> Bits:
    """Gaussian bf16 weights, any bit patterns, or the special ones."""
    if kind == "gaussian":
        return (rng.normal(0, 0.02, elements).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind == "special":
        return rng.choice(np.array([0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 1, 0x8001], np.uint16), elements)
    return rng.integers(0, 2**16, elements).astype(np.uint16)


def stepped(rng: np.random.Generator, base: Bits, density: float, wild: float) -> Bits:
    """Some elements moved by a few units, a share `wild` of those to any pattern."""
    step = rng.geometric(0.8, base.size) * rng.choice((-1, 1), base.size)
    moved = np.where(rng.random(base.size) < wild, rng.integers(0, 2**16, base.size), base + step).astype(np.uint16)
    return np.where(rng.random(base.size) < density, moved, base)


def restored(payload: bytes, base: Bits, classes: ClassMap) -> Bits:
    before = base.copy()
    where, old, new = block.decode(payload, base, classes)
    assert np.array_equal(base, before)
    assert np.array_equal(old, base[where])
    assert np.unique(where).size == where.size
    result = base.copy()
    result[where] = new
    return result


@relaxed
@given(
    classes=maps,
    elements=st.one_of(st.sampled_from(EDGES), st.integers(1, 9000)),
    kind=st.sampled_from(["gaussian", "special", "any"]),
    density=st.sampled_from([0.0, 0.001, 0.01, 0.08, 0.5, 0.9, 1.0]),
    wild=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_every_change_comes_back_bit_for_bit(
    classes: ClassMap, elements: int, kind: str, density: float, wild: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    base = weights(rng, elements, kind)
    new = stepped(rng, base, density, wild)
    payload, (where, before, after) = block.encode(base, new, classes)
    assert np.array_equal(where, np.flatnonzero(base != new))
    assert np.array_equal(before, base[where])
    assert np.array_equal(after, new[where])
    if where.size:
        assert np.array_equal(restored(payload, base, classes), new)
    else:
        assert payload == b""


@pytest.mark.parametrize("elements", [BLOCK_ELEMENTS - 1, BLOCK_ELEMENTS])
@pytest.mark.parametrize("density", [0.01, 1.0])
def test_a_full_block_comes_back(elements: int, density: float) -> None:
    rng = np.random.default_rng(elements)
    base = weights(rng, elements, "gaussian")
    new = stepped(rng, base, density, 0.5)
    classes = learn([(base, new)])
    assert np.array_equal(restored(block.encode(base, new, classes)[0], base, classes), new)


@relaxed
@given(
    classes=maps, payload=st.binary(max_size=400), kind=st.sampled_from(["gaussian", "any"]), seed=st.integers(0, 99)
)
def test_any_bytes_are_changes_of_the_block_or_raise_wire_error(
    classes: ClassMap, payload: bytes, kind: str, seed: int
) -> None:
    base = weights(np.random.default_rng(seed), 700, kind)
    try:
        result = restored(payload, base, classes)
    except WireError:
        return
    assert result.size == 700


@settings(deadline=None, max_examples=300)
@given(
    classes=maps,
    density=st.sampled_from([0.01, 0.3, 0.9]),
    flips=st.lists(st.integers(0, 10**6), max_size=4),
    seed=st.integers(0, 99),
)
def test_a_damaged_payload_never_reaches_outside_its_block(
    classes: ClassMap, density: float, flips: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    base = weights(rng, 3000, "gaussian")
    payload = bytearray(block.encode(base, stepped(rng, base, density, 0.05), classes)[0])
    for flip in flips:
        payload[flip // 8 % len(payload)] ^= 1 << flip % 8
    try:
        restored(bytes(payload), base, classes)
    except WireError:
        return


def test_bytes_cut_short_left_over_or_for_another_base_are_refused() -> None:
    rng = np.random.default_rng(3)
    base = weights(rng, 5000, "gaussian")
    new = stepped(rng, base, 0.3, 0.05)
    for classes in (ONE_CLASS, learn([(base, new)])):
        payload, _ = block.encode(base, new, classes)
        for wrong in (payload[:-1], payload[: len(payload) // 2], payload + b"\0", b""):
            with pytest.raises(WireError):
                block.decode(wrong, base, classes)
        with pytest.raises(WireError):
            block.decode(payload, base[:2500], classes)


def test_a_map_is_at_most_seven_ascending_thresholds() -> None:
    for wrong in (b"\0", b"\2\1", b"\1\1", bytes(range(1, 9))):
        with pytest.raises(WireError, match="ascending"):
            ClassMap(wrong)
    assert ClassMap(b"\x70\x75").class_of[[0, 0x6F, 0x70, 0x74, 0x75, 255]].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_learned_map_separates_what_changes_from_what_does_not() -> None:
    elements, changed = np.zeros(256, np.int64), np.zeros(256, np.int64)
    elements[100:130] = 1000
    changed[100:115] = 900
    assert best_map(elements, changed, 2).thresholds == bytes([115])
    assert best_map(elements, changed).classes <= MAX_CLASSES
    assert best_map(elements, changed * 0) == ONE_CLASS


def test_a_sample_teaches_nearly_the_same_map_as_everything() -> None:
    rng = np.random.default_rng(4)
    base = weights(rng, 3_000_000, "gaussian")
    drift = np.abs((base.astype(np.uint32) << 16).view(np.float32)) * 2.0**-9
    new = np.where(rng.random(base.size) < 2e-6 / drift, base + np.uint16(1), base).astype(np.uint16)
    span = slice(0, BLOCK_ELEMENTS)
    sizes = [
        len(block.encode(base[span], new[span], classes)[0])
        for classes in (learn(sampled([(base, new)])), learn([(base, new)]))
    ]
    assert sizes[0] <= 1.01 * sizes[1]


def test_threads_that_decode_at_once_do_not_meet() -> None:
    """Each has memory of its own: what the kernels count in must not be another thread's, or already given back."""
    rng = np.random.default_rng(5)
    pairs = []
    for _ in range(4):
        base = weights(rng, 30_000, "gaussian")
        pairs.append((base, stepped(rng, base, 0.05, 0.1)))
    maps_of = [learn([pair]) for pair in pairs]
    coded = [block.encode(*pair, classes)[0] for pair, classes in zip(pairs, maps_of, strict=True)]

    def comes_back(number: int) -> bool:
        base, new = pairs[number]
        return all(np.array_equal(restored(coded[number], base, maps_of[number]), new) for _ in range(20))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(comes_back, range(4)))
