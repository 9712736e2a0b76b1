"""The frame of one independent block of at most BLOCK_ELEMENTS elements of one tensor, and the stream of them.

    stream  := block...                       an unchanged block is not there; blocks may come in any order
    block   := tensor place length mode size payload crc
    place   := 2 * (offset / 2**19) + 1       where 2**19 divides the offset (every block of an unsharded tensor)
             | 2 * offset                     else
    mode    := RAW WRAP ULP CLASSES DENSE     what the payload is: coding.py
             | HASH                           the BLAKE3 of a whole tensor: hashes.py

tensor (index in the table), place, length (elements; 0 stands for 2**19), mode and size (bytes) are LEB128 varints in
their shortest form. One span has one spelling: on small deltas, the frame is what is left to save.
crc is CRC-32C, little-endian, over everything before it: signatures and segment hashes come earlier, but a payload
that was damaged in memory would often decode to wrong weights without it.

Bytes from outside become a RawBlock or raise WireError; nothing is kept beyond one block's bound. Digests and overlap
are not checked here (apply.py, snapshot.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c

from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, Bits, Positions
from aurora_p2p.delta.varint import MAX_VARINT, read_varint, varint
from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.types import TensorSpec

RAW, WRAP, ULP, CLASSES, DENSE, HASH = range(6)

_CRC = 4
_MAX_FRAME = 5 * MAX_VARINT + _CRC
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

    positions: int64[n], distinct element indices in the whole tensor; old, new: Bits[n], which differ in every element.
    """

    tensor: int
    positions: Positions
    old: Bits
    new: Bits


def frame(block: RawBlock) -> bytes:
    """The block's bytes in the stream. Raises ShapeError when its length is not 1 .. BLOCK_ELEMENTS."""
    if not 1 <= block.length <= BLOCK_ELEMENTS:
        raise ShapeError(f"a block has 1 to {BLOCK_ELEMENTS} elements, not {block.length}")
    block_number, within = divmod(block.offset, BLOCK_ELEMENTS)
    place = 2 * block.offset if within else 2 * block_number + 1
    length = block.length % BLOCK_ELEMENTS
    head = b"".join(map(varint, (block.tensor, place, length, block.mode, len(block.payload))))
    body = head + block.payload
    return body + _crc(body)


class FrameHead(NamedTuple):
    """What stands before a payload. end: where the payload begins in the data read."""

    tensor: int
    offset: int
    length: int
    mode: int
    size: int
    end: int


def read_head(data: bytes | bytearray, at: int) -> FrameHead | None:
    """The head of the frame at data[at:]; None if it is cut short. Raises WireError when it is not its one spelling."""
    numbers: list[int] = []
    while len(numbers) < 5:
        parsed = read_varint(data, at)
        if parsed is None:
            return None
        number, at = parsed
        numbers.append(number)
    tensor, place, length, mode, size = numbers
    offset = (place >> 1) * BLOCK_ELEMENTS if place & 1 else place >> 1
    if length >= BLOCK_ELEMENTS or (not place & 1 and offset % BLOCK_ELEMENTS == 0):
        raise WireError(f"a block announces {length} elements at {place}, which is not how a block is written")
    return FrameHead(tensor, offset, length or BLOCK_ELEMENTS, mode, size, at)


def _crc(body: bytes) -> bytes:
    crc: int = google_crc32c.value(body)
    return crc.to_bytes(_CRC, "little")


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
        head = read_head(self._buffer, start)
        if head is None:
            return None
        end = head.end + head.size + _CRC
        if end - start > self._max_block_bytes:
            raise WireError(f"a block announces {head.length} elements in {head.size} bytes")
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[start : end - _CRC])
        if _crc(body) != self._buffer[end - _CRC : end]:
            raise WireError(f"a block of tensor {head.tensor} is damaged: its CRC is wrong")
        return RawBlock(head.tensor, head.offset, head.length, head.mode, body[head.end - start :]), end


def check_block(block: RawBlock, spec: TensorSpec) -> None:
    """Raises WireError when the block reaches outside its tensor."""
    if not 1 <= block.length <= BLOCK_ELEMENTS or block.offset + block.length > spec.elements:
        raise WireError(f"a block of {spec.name!r} reaches past its {spec.elements} elements")
