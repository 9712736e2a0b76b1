"""The specification is enough: a decoder written from it agrees with the library on every block, good or hostile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_p2p.delta import dense, gaps
from aurora_p2p.delta.block import CLASSES, DENSE, RAW, ULP, WRAP, BlockReader, RawBlock, frame
from aurora_p2p.delta.classes import block as classes_block
from aurora_p2p.delta.classes.block import READABLE
from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.classes.unpack import START, unpack
from aurora_p2p.delta.coding import decode_block
from aurora_p2p.delta.tensors import Bits, bits_dtype
from aurora_p2p.errors import WireError
from aurora_p2p.types import DTYPES, TensorSpec
from tests.delta import reference

MAPS = st.sets(st.integers(1, 255), max_size=7).map(lambda steps: ClassMap(bytes(sorted(steps))))
MODES = [RAW, WRAP, ULP, CLASSES, DENSE]
LENGTHS = st.one_of(st.sampled_from([1, 2, 63, 64, 65, 128]), st.integers(1, 700))


@dataclass(frozen=True)
class Case:
    """A block in one mode, whatever an encoder would choose."""

    spec: TensorSpec
    base: Bits
    new: Bits
    mode: int
    classes: ClassMap
    payload: bytes

    def block(self, payload: bytes) -> RawBlock:
        return RawBlock(0, 0, self.base.size, self.mode, payload)

    @property
    def width(self) -> int:
        return 8 * self.base.itemsize


@st.composite
def cases(draw: st.DrawFn, modes: list[int] = MODES) -> Case:
    mode = draw(st.sampled_from(modes))
    dtype = draw(st.sampled_from(["BF16", "F16", "I16"] if mode == CLASSES else sorted(DTYPES)))
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    scaled = mode == CLASSES and draw(st.booleans())
    base = _weights(chance, draw(LENGTHS)) if scaled else _patterns(chance, dtype, draw(LENGTHS))
    step = _scaled_steps(chance, base) if scaled else chance.geometric(draw(st.sampled_from([0.95, 0.3])), base.size)
    moved = base + (step * chance.choice((-1, 1), base.size)).astype(base.dtype)
    new = np.where(chance.random(base.size) < draw(st.sampled_from([0.02, 0.2, 0.6, 1.0])), moved, base)
    if np.array_equal(base, new):
        new[-1] ^= base.dtype.type(1)
    classes = draw(MAPS)
    return Case(TensorSpec("w", dtype, base.shape), base, new, mode, classes, _payload(mode, base, new, classes))


def _patterns(chance: np.random.Generator, dtype: str, length: int) -> Bits:
    kind = bits_dtype(dtype)
    return chance.integers(0, 256, length * kind.itemsize, np.uint8).view(kind)


def _weights(chance: np.random.Generator, length: int) -> Bits:
    return (chance.normal(0, 0.02, length).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _scaled_steps(chance: np.random.Generator, base: Bits) -> npt.NDArray[np.int64]:
    """Magnitudes that halve with each exponent."""
    exponent = ((base >> np.uint16(7)) & np.uint16(0xFF)).astype(np.int64)
    return 1 + (chance.exponential(1.0, base.size) * 2.0 ** np.clip(122 - exponent, -4, 12)).astype(np.int64)


def _payload(mode: int, base: Bits, new: Bits, classes: ClassMap) -> bytes:
    where = np.flatnonzero(base != new)
    if mode == RAW:
        return new.tobytes()
    if mode == DENSE:
        return dense.encode(new)
    if mode == CLASSES:
        return classes_block.encode(base, new, classes)[0]
    return gaps.encode(where, base[where], new[where], ulp=mode == ULP)


def by_the_library(case: Case, payload: bytes) -> list[int] | None:
    """The elements after the block, through the stream as it travels; None when it is refused."""
    (block,) = BlockReader().feed(frame(case.block(payload)))
    untouched = case.base.copy()
    try:
        change = decode_block(block, case.spec, case.base, case.classes)
    except WireError:
        return None
    assert np.array_equal(case.base, untouched)
    assert np.array_equal(change.old, case.base[change.positions])
    assert np.all(change.old != change.new)
    assert np.unique(change.positions).size == change.positions.size
    new = case.base.copy()
    new[change.positions] = change.new
    return [int(element) for element in new]


def by_the_page(case: Case, payload: bytes) -> list[int] | None:
    (block,) = reference.read_stream(frame(case.block(payload)))
    try:
        return reference.decode(block, case.width, case.base.tolist(), case.classes.thresholds)
    except reference.Refused:
        return None


def mutated(payload: bytes, edits: list[tuple[int, int, int]]) -> bytes:
    """Bits flipped, bytes overwritten, inserted or removed, ends cut off, parts repeated."""
    wrong = bytearray(payload)
    for kind, at, value in edits:
        place = at % (len(wrong) + 1)
        match kind:
            case 0 if wrong:
                wrong[place % len(wrong)] ^= 1 << value % 8
            case 1 if wrong:
                wrong[place % len(wrong)] = value
            case 2:
                wrong[place:place] = bytes([value])
            case 3:
                del wrong[place : place + 1 + value % 4]
            case 4:
                del wrong[place:]
            case 5:
                wrong[place:place] = wrong[place // 2 : place]
    return bytes(wrong[:8192])


EDIT = st.tuples(st.integers(0, 5), st.integers(0, 10_000), st.integers(0, 255))
EDITS = st.lists(EDIT, min_size=1, max_size=4)


@settings(deadline=None, max_examples=250)
@given(cases())
def test_a_decoder_written_from_the_page_reads_every_block_of_every_mode(case: Case) -> None:
    assert by_the_page(case, case.payload) == case.new.tolist() == by_the_library(case, case.payload)


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None, max_examples=120)
@given(data=st.data(), edits=EDITS)
def test_damaged_payloads_are_refused_or_read_alike_by_both(mode: int, data: st.DataObject, edits: list) -> None:
    case = data.draw(cases([mode]))
    payload = mutated(case.payload, edits)
    assert by_the_library(case, payload) == by_the_page(case, payload)


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None, max_examples=120)
@given(data=st.data(), payload=st.binary(max_size=200))
def test_invented_payloads_are_refused_or_read_alike_by_both(mode: int, data: st.DataObject, payload: bytes) -> None:
    case = data.draw(cases([mode]))
    assert by_the_library(case, payload) == by_the_page(case, payload)


@settings(deadline=None, max_examples=200)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**19), st.binary(max_size=40)), max_size=4),
    edits=st.lists(EDIT, max_size=2),
    cuts=st.lists(st.integers(0, 60), max_size=6),
)
def test_a_damaged_stream_is_refused_or_the_same_blocks_wherever_it_is_cut(
    sizes: list, edits: list, cuts: list[int]
) -> None:
    blocks = [RawBlock(index, offset, length, index, payload) for index, (offset, length, payload) in enumerate(sizes)]
    stream = mutated(b"".join(map(frame, blocks)), edits)
    try:
        expected = [(b.tensor, b.offset, b.length, b.mode, b.payload) for b in reference.read_stream(stream)]
    except reference.Refused:
        expected = None
    reader, found, at = BlockReader(), [], 0
    try:
        for size in [*cuts, len(stream)]:
            found += reader.feed(stream[at : at + size])
            at += size
        reader.close()
    except WireError:
        found = None
    assert (found and [(b.tensor, b.offset, b.length, b.mode, b.payload) for b in found]) == expected


class BitWriter:
    """A class payload's head written by hand: bits from the least significant end."""

    def __init__(self) -> None:
        self._value, self._bits = 0, 0

    def put(self, value: int, bits: int) -> BitWriter:
        self._value |= value << self._bits
        self._bits += bits
        return self

    def number(self, value: int) -> BitWriter:
        width = value.bit_length()
        self.put(width, 5)
        return self.put(value ^ (1 << width - 1), width - 1) if width else self

    def bytes(self) -> bytes:
        return self._value.to_bytes(-(-self._bits // 8), "little")


HEADS = st.lists(
    st.tuples(
        st.integers(0, 12),  # n
        st.integers(0, 31),  # k
        st.integers(0, 3),  # kind
        st.one_of(st.none(), st.integers(0, 40)),  # rest
        st.integers(0, 255),  # parameters
        st.integers(0, 14),  # count
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=300)
@given(
    heads=HEADS, stream=st.binary(max_size=80), lengths=st.lists(st.integers(0, 90), max_size=7), seed=st.integers(0, 9)
)
def test_class_heads_that_parse_over_any_stream_are_refused_or_read_alike(
    heads: list, stream: bytes, lengths: list[int], seed: int
) -> None:
    head = BitWriter()
    for n, k, kind, rest, parameters, count in heads:
        head.number(n)
        if n == 0:
            continue
        head.put(k, 5).put(kind, 2).put(rest is not None, 1)
        if rest is not None:
            head.number(rest)
        if kind == reference.LISTED:
            head.put(parameters, 8).number(count)
        elif kind != reference.ONES:
            head.put(parameters % (16 if kind == reference.FIXED else 256), 4 if kind == reference.FIXED else 8)
    for length in lengths[: sum(one[0] > 0 and one[2] == reference.SCALED for one in heads[:-1])]:
        head.put(length, 24)
    base = np.random.default_rng(seed).integers(0, 2**16, 300).astype(np.uint16)
    classes = ClassMap(bytes(range(30, 30 * len(heads), 30)))
    case = Case(TensorSpec("w", "BF16", base.shape), base, base, CLASSES, classes, b"")
    payload = head.bytes() + stream
    assert by_the_library(case, payload) == by_the_page(case, payload)


def test_lengths_of_scaled_magnitudes_behind_the_end_are_refused_before_they_are_read() -> None:
    head = BitWriter()
    for _ in range(8):
        head.number(1).put(0, 5).put(reference.SCALED, 2).put(0, 1).put(127, 8)
    payload = head.bytes()
    memory = np.frombuffer(payload + bytes(READABLE) + b"\xff" * 64, np.uint8)
    heads, gap, step = np.empty((8, 8), np.uint64), np.empty(300, np.uint32), np.empty(300, np.int32)
    assert unpack(memory.ctypes.data, len(payload), 8, 300, heads, gap, step) == -1
    assert not heads[:, START].any()


def test_a_plane_that_says_it_is_larger_than_its_block_is_refused_before_it_is_allocated() -> None:
    honest = dense.encode(np.zeros(100, np.uint8))
    assert honest[1:5] == bytes.fromhex("28b52ffd")
    for stated in (99, 101, 2**30, 2**45):
        framed = honest[1:5] + b"\xc0" + honest[6:7] + stated.to_bytes(8, "little") + honest[7:]
        with pytest.raises(WireError, match=f"plane of {stated} bytes"):
            dense.decode(bytes([len(framed)]) + framed, 100, np.dtype("<u1"))


def test_a_step_that_needs_more_than_64_bits_is_refused() -> None:
    base = np.zeros(8, np.uint64)
    changed = base.copy()
    changed[3] = 5
    payload = bytearray(gaps.encode(np.array([3]), base[[3]], changed[[3]], ulp=True))
    payload[-2:] = [63, 0b100]  # k = 63 and a quotient of 2
    payload += bytes(8)
    case = Case(TensorSpec("w", "I64", (8,)), base, changed, ULP, ClassMap(), bytes(payload))
    assert by_the_library(case, bytes(payload)) is None
    assert by_the_page(case, bytes(payload)) is None
