from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_p2p.delta import rice
from aurora_p2p.delta.block import CLASSES, DENSE, RAW, ULP, WRAP, BlockReader, RawBlock, frame
from aurora_p2p.delta.classes.map import ONE_CLASS, ClassMap, learn
from aurora_p2p.delta.coding import decode_block, encode_block, encode_whole, whole_bits
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, Bits, bits_dtype
from aurora_p2p.delta.varint import varint
from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.types import DTYPES, TensorSpec

REAL_STEP = Path(__file__).parent / "data" / "rl1e-6_s39.npz"
relaxed = settings(deadline=None, max_examples=60)


def encoded(tensor: int, offset: int, base: Bits, new: Bits, classes: ClassMap = ONE_CLASS) -> bytes:
    return encode_block(tensor, offset, base, new, classes)[0]


def only_block(coded: bytes) -> RawBlock:
    reader = BlockReader()
    blocks = reader.feed(coded)
    reader.close()
    (block,) = blocks
    return block


def after(coded: bytes, spec: TensorSpec, base: Bits, classes: ClassMap = ONE_CLASS) -> Bits:
    """The tensor after one block; the base must come out untouched."""
    before = base.copy()
    change = decode_block(only_block(coded), spec, base, classes)
    assert np.array_equal(base, before)
    assert np.array_equal(change.old, base[change.positions])
    assert np.all(change.old != change.new)
    assert np.unique(change.positions).size == change.positions.size
    result = base.copy()
    result[change.positions] = change.new
    return result


@relaxed
@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    elements=st.one_of(st.sampled_from([1, 7, 8, 9, 63, 64, 65]), st.integers(1, 3000)),
    density=st.sampled_from([0.0, 0.003, 0.01, 0.1, 0.5, 0.9, 1.0]),
    before=st.integers(0, 1000),
    seed=st.integers(0, 2**32),
)
def test_a_block_carries_any_dtype_at_any_density_bit_for_bit(
    make_step, dtype: str, elements: int, density: float, before: int, seed: int
) -> None:
    step = make_step({"w": (dtype, (before + elements,))}, density, seed)
    base, new = step.base["w"], step.new["w"].copy()
    new[:before] = base[:before]
    coded = encoded(3, before, base[before:], new[before:])
    if np.array_equal(base, new):
        assert coded == b""
    else:
        assert np.array_equal(after(coded, step.specs[0], base), new)
        assert len(coded) <= elements * base.itemsize + 16


@relaxed
@given(st.lists(st.sampled_from([0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF, 0x0001, 0x8001]), min_size=2))
def test_signed_zeros_infinities_and_nan_payloads_survive(patterns: list[int]) -> None:
    base = np.array(patterns, np.uint16)
    new = np.roll(base, 1)
    if coded := encoded(0, 0, base, new):
        assert np.array_equal(after(coded, TensorSpec("w", "BF16", base.shape), base), new)


@pytest.mark.parametrize("elements", [BLOCK_ELEMENTS - 1, BLOCK_ELEMENTS])
@pytest.mark.parametrize("changed", [[0], [-1], [0, -1]])
def test_the_first_and_last_element_of_a_full_block_can_change(elements: int, changed: list[int]) -> None:
    base = np.zeros(elements, np.uint16)
    new = base.copy()
    new[changed] = 1
    assert np.array_equal(after(encoded(0, 0, base, new), TensorSpec("w", "BF16", (elements,)), base), new)


def test_the_cheapest_mode_is_taken() -> None:
    rng = np.random.default_rng(5)
    base = rng.integers(0, 2**16, 4000).astype(np.uint16)
    some = (rng.random(4000) < 0.01).astype(np.uint16)
    assert only_block(encoded(0, 0, base, base + some)).mode == CLASSES
    assert only_block(encoded(0, 0, base.astype(np.uint32), (base + some).astype(np.uint32))).mode == ULP
    assert only_block(encoded(0, 0, base, rng.integers(0, 2**16, 4000).astype(np.uint16))).mode == RAW
    weights = (rng.normal(0, 0.02, 4000).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    assert only_block(encoded(0, 0, base, weights)).mode == DENSE
    assert only_block(encode_whole(0, 0, weights)).mode == DENSE
    ends = np.where(rng.random(4000) < 0.5, 0, 0xFFFF_FFFF).astype(np.uint32)
    assert only_block(encoded(0, 0, ends, ends + np.where(ends, 1, -1).astype(np.uint32))).mode == WRAP


def real_step() -> tuple[Bits, Bits]:
    """3.4 M weights before and after one GRPO step at lr 1e-6, 1 % of them changed."""
    real = np.load(REAL_STEP)
    base: Bits = real["base"]
    new = base.copy()
    new[np.cumsum(real["gap"].astype(np.int64)) - 1] ^= real["xor"]
    return base, new


def bits_per_change(base: Bits, new: Bits, classes: ClassMap) -> float:
    spec = TensorSpec("all", "BF16", base.shape)
    size, result = 0, base.copy()
    for start in range(0, base.size, BLOCK_ELEMENTS):
        span = slice(start, start + BLOCK_ELEMENTS)
        coded = encoded(0, start, base[span], new[span], classes)
        size += len(coded)
        change = decode_block(only_block(coded), spec, base, classes)
        result[change.positions] = change.new
    assert np.array_equal(result, new)
    return 8 * size / np.count_nonzero(base != new)


def test_a_real_rl_step_takes_at_most_6_2_bits_per_change_framing_included_and_10_2_with_one_class() -> None:
    base, new = real_step()
    assert bits_per_change(base, new, learn([(base, new)])) <= 6.2
    assert bits_per_change(base, new, ONE_CLASS) <= 10.2


def test_framing_adds_at_most_16_bytes_to_a_small_block() -> None:
    base = np.zeros(65_536, np.uint16)
    new = base.copy()
    new[1234] = 1
    assert len(encoded(20, 0, base, new)) <= 20


def test_the_bytes_of_known_blocks_never_change() -> None:
    base = np.array([0x3F80, 0xBF80, 0x0000, 0x7FC1, 5, 6, 7, 8] * 4, np.uint16)
    new = base.copy()
    new[[1, 2, 9, 31]] = [0xBF81, 0x8000, 0xBF7F, 300]
    assert encoded(1, 600, base, new).hex() == "01b0092003090391c0009b0a8c15014f088c1f"
    assert encode_whole(0, 0, base[:3]).hex() == "0001030006803f80bf0000fc599dec"


@relaxed
@given(st.lists(st.integers(1, 40), max_size=30), st.integers(0, 2**32))
def test_blocks_do_not_depend_on_where_the_stream_is_cut(cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = [
        RawBlock(int(rng.integers(300)), int(rng.integers(2**40)), int(rng.integers(1, 2**19)), int(rng.integers(128)),
                 rng.bytes(int(rng.integers(50))))
        for _ in range(5)
    ]  # fmt: skip
    stream = b"".join(map(frame, blocks))
    reader, found, at = BlockReader(), [], 0
    for size in [*cuts, len(stream)]:
        found += reader.feed(stream[at : at + size])
        at += size
    reader.close()
    assert found == blocks


@relaxed
@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_are_blocks_or_raise_wire_error(chunks: list[bytes]) -> None:
    reader = BlockReader()
    try:
        for chunk in chunks:
            reader.feed(chunk)
        reader.close()
    except WireError:
        return
    assert not any(chunks)


@settings(deadline=None, max_examples=200)
@given(
    dtype=st.sampled_from(["F8_E5M2", "BF16", "F32", "I64"]),
    mode=st.integers(0, 4),
    offset=st.integers(0, 1000),
    length=st.integers(0, 2**20),
    payload=st.binary(max_size=120),
    count=st.integers(0, 400),
)
def test_a_lying_block_with_a_true_crc_changes_only_its_own_elements_or_raises(
    dtype: str, mode: int, offset: int, length: int, payload: bytes, count: int
) -> None:
    base = np.arange(900, dtype=bits_dtype(dtype)) if dtype != "F8_E5M2" else np.zeros(900, np.uint8)
    before = base.copy()
    block = RawBlock(0, offset, length, mode, bytes((count & 0x7F,)) + payload)
    try:
        change = decode_block(block, TensorSpec("w", dtype, (900,)), base)
    except WireError:
        return
    finally:
        assert np.array_equal(base, before)
    inside = (change.positions >= offset) & (change.positions < offset + length)
    assert np.all(inside)
    assert np.unique(change.positions).size == change.positions.size
    assert change.positions.size <= length
    assert np.all(change.old != change.new)


@settings(deadline=None, max_examples=200)
@given(dtype=st.sampled_from(["BOOL", "F16", "F64"]), flip=st.integers(0, 10**6), seed=st.integers(0, 50))
def test_a_flipped_payload_bit_never_escapes_as_another_error(make_step, dtype: str, flip: int, seed: int) -> None:
    step = make_step({"w": (dtype, (700,))}, 0.1, seed)
    block = only_block(encoded(0, 0, step.base["w"], step.new["w"]))
    payload = bytearray(block.payload)
    payload[flip // 8 % len(payload)] ^= 1 << flip % 8
    try:
        change = decode_block(RawBlock(0, 0, 700, block.mode, bytes(payload)), step.specs[0], step.base["w"])
    except WireError:
        return
    assert np.all((change.positions >= 0) & (change.positions < 700))


@pytest.mark.parametrize("at", range(40))
def test_every_flipped_bit_of_a_frame_is_noticed(at: int) -> None:
    base = np.zeros(300, np.uint16)
    coded = encoded(0, 0, base, base + (np.arange(300) % 9 == 0).astype(np.uint16))
    damaged = bytearray(coded)
    damaged[at % len(coded)] ^= 1 << at % 8
    with pytest.raises(WireError):
        only_block(bytes(damaged))


def test_a_block_announced_larger_than_allowed_is_refused_before_it_is_kept() -> None:
    coded = frame(RawBlock(0, 0, 100, RAW, bytes(100)))
    with pytest.raises(WireError, match="announces"):
        BlockReader(max_block_bytes=100).feed(coded[:10])
    for place, length in ((1, BLOCK_ELEMENTS), (1, BLOCK_ELEMENTS + 1), (0, 5), (2 * BLOCK_ELEMENTS, 5)):
        with pytest.raises(WireError, match="not how a block is written"):
            BlockReader().feed(with_crc(b"".join((b"\0", varint(place), varint(length), b"\0\1x"))))


def with_crc(body: bytes) -> bytes:
    return body + int(google_crc32c.value(body)).to_bytes(4, "little")


def test_varints_have_one_form() -> None:
    for head in (b"\x80\x00", b"\xff" * 9):
        with pytest.raises(WireError, match="varint"):
            BlockReader().feed(head + bytes(20))


def test_a_block_outside_its_tensor_an_unknown_mode_and_leftover_bytes_are_refused() -> None:
    spec, base = TensorSpec("w", "BF16", (10,)), np.zeros(10, np.uint16)
    good = only_block(encoded(0, 0, base, base + np.uint16(1)))
    for bad in (
        RawBlock(0, 1, 10, good.mode, good.payload),
        RawBlock(0, 2**50, 10, good.mode, good.payload),
        RawBlock(0, 0, 0, good.mode, good.payload),
        RawBlock(0, 0, 9, good.mode, good.payload),
        RawBlock(0, 0, 10, 5, good.payload),
        RawBlock(0, 0, 10, ULP, good.payload),
        RawBlock(0, 0, 10, good.mode, good.payload + b"\0"),
        RawBlock(0, 0, 10, good.mode, b""),
        RawBlock(0, 0, 10, RAW, bytes(19)),
    ):
        with pytest.raises(WireError):
            decode_block(bad, spec, base)
    with pytest.raises(WireError):
        whole_bits(good, spec)


def coded_changes(gaps: list[int], signs: bytes, skips: list[int], sizes: list[int]) -> bytes:
    lists = [np.array(values, np.uint64) for values in (gaps, skips, sizes)]
    parts = (varint(len(gaps)), rice.encode(lists[0], 19), signs, varint(len(skips)), rice.encode(lists[1], 19))
    return b"".join(parts) + rice.encode(lists[2], 16)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (coded_changes([0, 0, 9], b"\0", [], []), "past its 10"),
        (coded_changes([0] * 11, b"\0\0", [], []), "counts more"),
        (coded_changes([0, 0], b"\0", [2], [5]), "past its 2"),
        (coded_changes([0, 0], b"\0", [0, 0, 0], [5, 5, 5]), "counts more"),
        (coded_changes([0, 0], b"\0", [0], [2**16 - 2]), "wider than its 16 bits"),
        (coded_changes([0, 0], b"", [], []), "cut short"),
    ],
)
def test_changes_that_contradict_themselves_are_refused_by_name(payload: bytes, reason: str) -> None:
    base = np.zeros(10, np.uint16)
    honest = RawBlock(0, 0, 10, ULP, coded_changes([0, 8], b"\0", [1], [2**15 - 2]))
    assert decode_block(honest, TensorSpec("w", "BF16", (10,)), base).positions.tolist() == [0, 9]
    with pytest.raises(WireError, match=reason):
        decode_block(RawBlock(0, 0, 10, ULP, payload), TensorSpec("w", "BF16", (10,)), base)


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ShapeError):
        encoded(0, 0, np.zeros(3, np.uint16), np.zeros(4, np.uint16))
    with pytest.raises(ShapeError):
        encoded(0, 0, np.zeros(3, np.uint16), np.zeros(3, np.uint8))
    with pytest.raises(ShapeError):
        encode_whole(0, 0, np.zeros(BLOCK_ELEMENTS + 1, np.uint8))
    with pytest.raises(ShapeError):
        decode_block(RawBlock(0, 0, 3, RAW, bytes(6)), TensorSpec("w", "BF16", (3,)), np.zeros(4, np.uint16))
