"""One independent block of at most BLOCK_ELEMENTS elements of one tensor <-> bytes.

    stream  := block...                       an unchanged block is not there; blocks may come in any order
    block   := tensor offset length mode size payload crc
    payload := RAW   `length` bit patterns, little-endian
             | WRAP  changes, steps of two's complement differences (ulp.py)
             | ULP   changes, steps of ordered keys
    changes := count gaps signs exceptions [skips sizes]
      gaps   Rice list of `count`: unchanged elements before each changed one
      signs  one bit per change, 1 = the step is negative, least significant bit first
      skips  Rice list of `exceptions`: changes of magnitude 1 before each larger one
      sizes  Rice list of `exceptions`: magnitude - 2

tensor (index in the table), offset, length (elements), mode, size (bytes), count and exceptions are LEB128 varints in
their shortest form. Modes above ULP are free for the class coders that a header's class map announces.
crc is CRC-32C, little-endian, over everything before it: signatures and segment hashes come earlier, but a payload
that was damaged in memory would often decode to wrong weights without it.

A block needs nothing but the table and its base: it carries no dtype, and the encoder takes the cheapest mode by its
exact size. Bytes from outside decode to a Change or raise WireError; nothing is allocated beyond what the bytes at
hand and the block's length justify. Digests and overlap are not checked here (apply.py, snapshot.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import google_crc32c
import numpy as np

from aurora_p2p.delta import rice
from aurora_p2p.delta.scan import changed_positions
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, Bits, Positions, bits_dtype
from aurora_p2p.delta.ulp import crosses_sign, step_between, step_from
from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.types import TensorSpec

RAW, WRAP, ULP = 0, 1, 2

_GAP_BITS = (BLOCK_ELEMENTS - 1).bit_length()
_MAX_VARINT = 9
"""Bytes of a varint: 63 bits."""
_CRC = 4
_MAX_FRAME = 5 * _MAX_VARINT + _CRC
MAX_BLOCK_BYTES = BLOCK_ELEMENTS * 8 + _MAX_FRAME
"""A raw block of the widest dtype: the encoder never emits a larger one."""


@dataclass(frozen=True, slots=True)
class RawBlock:
    """A block whose frame and CRC are right; its contents are still unchecked."""

    tensor: int
    offset: int
    length: int
    mode: int
    payload: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """The elements of one tensor that a block changes.

    positions: int64[n], element indices in the whole tensor; old, new: Bits[n], which differ in every element.
    """

    tensor: int
    positions: Positions
    old: Bits
    new: Bits


def find_changes(tensor: int, offset: int, base: Bits, new: Bits) -> Change:
    """The elements whose bits differ between two views of one block. Raises ShapeError when they do not match."""
    if base.shape != new.shape or base.dtype != new.dtype or base.ndim != 1:
        raise ShapeError(f"a block of {base.dtype}{base.shape} cannot become {new.dtype}{new.shape}")
    where = changed_positions(base, new)
    return Change(tensor, where + offset, base[where], new[where])


def encode_block(tensor: int, offset: int, base: Bits | None, new: Bits) -> bytes:
    """One framed block; empty if nothing changed.

    base, new: the block's own elements (at most BLOCK_ELEMENTS) before and after; base is None when the receiver has
    none, and all elements travel. offset: the block's first element in the tensor. Raises ShapeError.
    """
    if base is None:
        return frame(RawBlock(tensor, offset, new.size, RAW, _raw(new)))
    return encode_changes(find_changes(tensor, offset, base, new), offset, new)


def encode_changes(change: Change, offset: int, new: Bits) -> bytes:
    """encode_block for changes that `find_changes` has found in the block `new`."""
    if change.positions.size == 0:
        return b""
    gaps = np.diff(change.positions, prepend=offset - 1).astype(np.uint64) - np.uint64(1)
    coded_gaps = rice.encode(gaps, _GAP_BITS)
    modes = (ULP, WRAP) if crosses_sign(change.old, change.new) else (ULP,)
    coded = [(mode, _encode_steps(coded_gaps, change.old, change.new, mode)) for mode in modes]
    mode, payload = min(coded, key=lambda choice: len(choice[1]))
    if len(payload) >= new.nbytes:
        mode, payload = RAW, _raw(new)
    return frame(RawBlock(change.tensor, offset, new.size, mode, payload))


def _encode_steps(coded_gaps: bytes, old: Bits, new: Bits, mode: int) -> bytes:
    negative, magnitude = step_between(old, new, ulp=mode == ULP)
    larger = np.flatnonzero(magnitude != 1)
    skips = np.diff(larger, prepend=-1).astype(np.uint64) - np.uint64(1)
    parts = (
        varint(old.size),
        coded_gaps,
        np.packbits(negative, bitorder="little").tobytes(),
        varint(larger.size),
        rice.encode(skips, _GAP_BITS),
        rice.encode(magnitude[larger] - np.uint64(2), old.itemsize * 8),
    )
    return b"".join(parts)


def _raw(bits: Bits) -> bytes:
    return bits.astype(bits.dtype.newbyteorder("<"), copy=False).tobytes()


def frame(block: RawBlock) -> bytes:
    """The block's bytes in the stream. Raises ShapeError when its length is not 1 .. BLOCK_ELEMENTS."""
    if not 1 <= block.length <= BLOCK_ELEMENTS:
        raise ShapeError(f"a block has 1 to {BLOCK_ELEMENTS} elements, not {block.length}")
    head = b"".join(map(varint, (block.tensor, block.offset, block.length, block.mode, len(block.payload))))
    body = head + block.payload
    return body + _crc(body)


def _crc(body: bytes) -> bytes:
    crc: int = google_crc32c.value(body)
    return crc.to_bytes(_CRC, "little")


def varint(value: int) -> bytes:
    """LEB128, shortest form."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes | bytearray, at: int) -> tuple[int, int] | None:
    """(value, where it ends) of the varint at `at`; None if it is cut short. Raises WireError if it is malformed."""
    value = 0
    for index, byte in enumerate(data[at : at + _MAX_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if byte == 0 and index:
                raise WireError("a varint is not in its shortest form")
            return value, at + index + 1
    if len(data) - at >= _MAX_VARINT:
        raise WireError("a varint is longer than 63 bits")
    return None


class BlockReader:
    """Sans-IO reader of a block stream: feed bytes as they come, take whole blocks. Unusable after a WireError."""

    def __init__(self, *, max_block_bytes: int = MAX_BLOCK_BYTES) -> None:
        """max_block_bytes bounds one framed block, and so what an unfinished one can make us keep."""
        self._buffer = bytearray()
        self._max_block_bytes = max_block_bytes

    def feed(self, data: bytes | memoryview) -> list[RawBlock]:
        """The blocks that `data` completes. Raises WireError for a malformed frame or a wrong CRC."""
        self._buffer += data
        found, start = [], 0
        while (parsed := self._parse(start)) is not None:
            block, start = parsed
            found.append(block)
        del self._buffer[:start]
        return found

    def close(self) -> None:
        """The stream has ended. Raises WireError when it ended inside a block."""
        if self._buffer:
            raise WireError(f"the block stream ends inside a block, after {len(self._buffer)} of its bytes")

    def _parse(self, start: int) -> tuple[RawBlock, int] | None:
        numbers: list[int] = []
        at = start
        while len(numbers) < 5:
            parsed = read_varint(self._buffer, at)
            if parsed is None:
                return None
            number, at = parsed
            numbers.append(number)
        tensor, offset, length, mode, size = numbers
        end = at + size + _CRC
        if not 1 <= length <= BLOCK_ELEMENTS or end - start > self._max_block_bytes:
            raise WireError(f"a block announces {length} elements in {size} bytes")
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[start : end - _CRC])
        if _crc(body) != self._buffer[end - _CRC : end]:
            raise WireError(f"a block of tensor {tensor} is damaged: its CRC is wrong")
        return RawBlock(tensor, offset, length, mode, body[at - start :]), end


def check_block(block: RawBlock, spec: TensorSpec) -> None:
    """Raises WireError when the block reaches outside its tensor."""
    if not 1 <= block.length <= BLOCK_ELEMENTS or block.offset + block.length > spec.elements:
        raise WireError(f"a block of {spec.name!r} reaches past its {spec.elements} elements")


def raw_bits(block: RawBlock, spec: TensorSpec) -> Bits:
    """All elements of a RAW block (read-only). Raises WireError when it is not one, or has the wrong size."""
    dtype = bits_dtype(spec.dtype)
    if block.mode != RAW or len(block.payload) != block.length * dtype.itemsize:
        raise WireError(f"a block of {spec.name!r} is not {block.length} raw elements")
    return np.frombuffer(block.payload, dtype)


def decode_block(block: RawBlock, spec: TensorSpec, base: Bits) -> Change:
    """What the block changes.

    base: Bits of the WHOLE tensor, never written. spec must be the table's entry number block.tensor.
    Raises WireError, ShapeError when base does not fit the spec. Without a base, use raw_bits.
    """
    check_block(block, spec)
    span = slice(block.offset, block.offset + block.length)
    if base.shape != (spec.elements,) or base.dtype != bits_dtype(spec.dtype):
        raise ShapeError(f"the base of {spec.name!r} is {base.dtype}{base.shape}")
    if block.mode == RAW:
        return find_changes(block.tensor, block.offset, base[span], raw_bits(block, spec))
    if block.mode not in (WRAP, ULP):
        raise WireError(f"block mode {block.mode} is not known")
    return _decode_changes(block, base[span])


def _decode_changes(block: RawBlock, base: Bits) -> Change:
    data, width = block.payload, base.itemsize * 8
    count, at = _count(data, 0, block.length)
    gaps, at = rice.decode(data, at, count, _GAP_BITS)
    signs_end = at + (count + 7) // 8
    exceptions, after_count = _count(data, signs_end, count)
    signs = np.frombuffer(data[at:signs_end], np.uint8)
    negative = np.unpackbits(signs, count=count, bitorder="little").astype(np.bool_)
    skips, at = rice.decode(data, after_count, exceptions, _GAP_BITS)
    sizes, at = rice.decode(data, at, exceptions, width)
    if at != len(data):
        raise WireError("a block has bytes after its end")
    if exceptions and int(sizes.max()) > 2 ** (width - 1) - 2:
        raise WireError(f"a block has a step wider than its {width} bits")
    magnitude = np.ones(count, np.uint64)
    magnitude[_places(skips, count)] = sizes + np.uint64(2)
    where = _places(gaps, block.length)
    old = base[where]
    new = step_from(old, negative, magnitude, ulp=block.mode == ULP)
    return Change(block.tensor, where + block.offset, old, new)


def _count(data: bytes, at: int, limit: int) -> tuple[int, int]:
    parsed = read_varint(data, at)
    if parsed is None or parsed[0] > limit:
        raise WireError(f"a block counts more than its {limit} elements, or is cut short")
    return parsed


def _places(gaps: rice.Values, limit: int) -> Positions:
    """Indices from the gaps before them; a gap is below 2**24, so sums of a block's gaps stay far below 2**63."""
    places = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if places.size and places[-1] >= limit:
        raise WireError(f"a block changes an element past its {limit}")
    return places
