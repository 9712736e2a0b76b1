"""A second decoder of the block stream, written from docs/protocol/02-artifacts.md alone, in plain Python.

It shares no code with the library, is slow, and shows that the page says enough: whatever the library accepts or
refuses, this accepts or refuses, with the same elements (test_reference.py). Only Zstandard comes from a package.
"""

from __future__ import annotations

from dataclasses import dataclass

import zstandard

RAW, WRAP, ULP, CLASSES, DENSE = range(5)
ONES, LISTED, SCALED, FIXED = range(4)
BLOCK_ELEMENTS, MAX_BLOCK_BYTES, WINDOW_BYTES = 2**19, 4194353, 2**20
PLACE = (24, 20)
"""(zeros, width) of gaps, runs, skips and LISTED sizes in CLASSES."""
SIZE = (12, 15)
"""(zeros, width) of FIXED and SCALED magnitudes."""


class Refused(Exception):
    """The bytes are not what the page allows."""


def need(condition: bool) -> None:
    if not condition:
        raise Refused


@dataclass(frozen=True)
class Block:
    tensor: int
    offset: int
    length: int
    mode: int
    payload: bytes


class Bits:
    """Bits of a payload, each byte from its least significant end."""

    def __init__(self, payload: bytes, at: int = 0) -> None:
        self._value, self.end, self.at = int.from_bytes(payload, "little"), 8 * len(payload), at

    def take(self, count: int) -> int:
        need(self.at + count <= self.end)
        value = self._value >> self.at & (1 << count) - 1
        self.at += count
        return value

    def number(self) -> int:
        width = self.take(5)
        return 0 if width == 0 else 1 << width - 1 | self.take(width - 1)

    def rice(self, k: int, kind: tuple[int, int], *, strict: bool = False) -> int:
        zeros, width = kind
        quotient = 0
        while quotient < zeros and not self.take(1):
            quotient += 1
        if quotient < zeros:
            return quotient << k | self.take(k)
        stop = self.take(1)
        need(stop == 1 or not strict)
        return self.take(width)

    def to_whole_byte(self) -> None:
        self.at = -(-self.at // 8) * 8

    def near_the_end(self) -> bool:
        return self.end - self.at < 8


# ---- the frame


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(9):
        need(at + index < len(data))
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            need(index == 0 or byte != 0)
            return value, at + index + 1
    raise Refused


def read_stream(data: bytes) -> list[Block]:
    """Every block of a whole stream."""
    found, at = [], 0
    while at < len(data):
        start, numbers = at, []
        for _ in range(5):
            number, at = varint(data, at)
            numbers.append(number)
        tensor, place, count, mode, size = numbers
        need(count < BLOCK_ELEMENTS)
        length = count or BLOCK_ELEMENTS
        offset = place // 2 * BLOCK_ELEMENTS if place % 2 else place // 2
        need(place % 2 == 1 or offset % BLOCK_ELEMENTS != 0)
        end = at + size
        need(end + 4 - start <= MAX_BLOCK_BYTES and end + 4 <= len(data))
        need(crc32c(data[start:end]) == int.from_bytes(data[end : end + 4], "little"))
        found.append(Block(tensor, offset, length, mode, data[at:end]))
        at = end + 4
    return found


# ---- the modes


def decode(block: Block, width: int, base: list[int] | None = None, thresholds: bytes = b"") -> list[int]:
    """The block's elements after it. width: bits of an item; base: the block's elements before."""
    if block.mode == RAW:
        return _raw(block, width)
    if block.mode == DENSE:
        return _dense(block, width)
    need(base is not None)
    assert base is not None
    if block.mode in (WRAP, ULP):
        steps = _steps(block, width)
    else:
        need(block.mode == CLASSES and width == 16)
        steps = _class_steps(block, base, thresholds)
    new = list(base)
    for place, step in steps.items():
        if block.mode == WRAP:
            new[place] = (base[place] + step) % 2**width
        else:
            new[place] = key((key(base[place], width) + step) % 2**width, width)
    return new


def key(pattern: int, width: int) -> int:
    """Ordered key modulo 2**width; its own inverse."""
    return pattern if pattern < 1 << width - 1 else (-1 - (pattern - (1 << width - 1))) % (1 << width)


def _raw(block: Block, width: int) -> list[int]:
    size = width // 8
    need(len(block.payload) == block.length * size)
    return [int.from_bytes(block.payload[at : at + size], "little") for at in range(0, len(block.payload), size)]


def _dense(block: Block, width: int) -> list[int]:
    elements, at = [0] * block.length, 0
    for _ in range(width // 8):
        size, at = varint(block.payload, at)
        end = at + (size or block.length)
        need(end <= len(block.payload))
        plane = block.payload[at:end]
        if size:
            plane = _unzipped(plane, block.length)
        elements = [element << 8 | byte for element, byte in zip(elements, plane, strict=True)]
        at = end
    need(at == len(block.payload))
    return [element >> 1 | (element & 1) << width - 1 for element in elements]


def _unzipped(frame: bytes, length: int) -> bytes:
    try:
        stated = zstandard.get_frame_parameters(frame).content_size
        need(stated in (zstandard.CONTENTSIZE_UNKNOWN, length))
        coder = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES)
        plane = coder.decompress(frame, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Refused from error
    need(len(plane) == length)
    return plane


def _steps(block: Block, width: int) -> dict[int, int]:
    count, at = varint(block.payload, 0)
    need(count <= block.length)
    gaps, at = _list(block.payload, at, count, 19)
    signs = Bits(block.payload, 8 * at)
    negative = [signs.take(1) for _ in range(count)]
    exceptions, at = varint(block.payload, at + (count + 7) // 8)
    need(exceptions <= count)
    skips, at = _list(block.payload, at, exceptions, 19)
    sizes, at = _list(block.payload, at, exceptions, width)
    need(at == len(block.payload))
    magnitudes = [1] * count
    for index, size in zip(_places(skips, count), sizes, strict=True):
        need(size <= 2 ** (width - 1) - 2)
        magnitudes[index] = size + 2
    steps = [-size if down else size for size, down in zip(magnitudes, negative, strict=True)]
    return dict(zip(_places(gaps, block.length), steps, strict=True))


def _list(payload: bytes, at: int, count: int, width: int) -> tuple[list[int], int]:
    if count == 0:
        return [], at
    need(at < len(payload))
    k = payload[at]
    need(k < width)
    bits = Bits(payload, 8 * at + 8)
    values = [bits.rice(k, (24, width), strict=True) for _ in range(count)]
    need(all(value < 2**64 for value in values))
    return values, -(-bits.at // 8)


def _places(gaps: list[int], limit: int) -> list[int]:
    places, following = [], 0
    for gap in gaps:
        places.append(following + gap)
        following += gap + 1
    need(following <= limit)
    return places


# ---- CLASSES


@dataclass
class Class:
    """One class's head; then what its part of the stream says."""

    members: list[int]
    n: int
    k: int = 0
    kind: int = ONES
    rest: int | None = None
    skip: int = 0
    size: int = 0
    count: int = 0
    length: int | None = None


def read_heads(payload: bytes, base: list[int], thresholds: bytes) -> tuple[list[Class], Bits]:
    """The head of every class, and the bits of the stream behind them."""
    bits = Bits(payload)
    class_of = [sum(_class_byte(pattern) >= threshold for threshold in thresholds) for pattern in base]
    classes = [
        _class_head(bits, [place for place, one in enumerate(class_of) if one == group])
        for group in range(len(thresholds) + 1)
    ]
    for one in [one for one in classes if one.n and one.kind == SCALED][:-1]:
        one.length = bits.take(24)
    bits.to_whole_byte()
    return classes, bits


def _class_byte(pattern: int) -> int:
    return pattern >> 7 & 0xFF


def _class_steps(block: Block, base: list[int], thresholds: bytes) -> dict[int, int]:
    classes, bits = read_heads(block.payload, base, thresholds)
    changed = [one for one in classes if one.n]
    steps: dict[int, int] = {}
    places: list[tuple[Class, list[int]]] = []
    for one in changed:
        ranks, signs = _runs(bits, one) if one.rest is not None else _gaps(bits, one)
        need(ranks[-1] < len(one.members))
        mine = [one.members[rank] for rank in ranks]
        places.append((one, mine))
        sizes = _sizes(bits, one)
        steps |= {place: -size if down else size for place, size, down in zip(mine, sizes, signs, strict=True)}
    for one, mine in places:
        if one.kind == SCALED:
            began = bits.at
            for place in mine:
                steps[place] *= _magnitude(bits.rice(min(max(one.size - _class_byte(base[place]), 0), 14), SIZE))
            need(one.length is None or bits.at - began == one.length)
    need(bits.near_the_end())
    return steps


def _class_head(bits: Bits, members: list[int]) -> Class:
    one = Class(members, bits.number())
    if one.n == 0:
        return one
    need(one.n <= len(members))
    one.k, one.kind = bits.take(5), bits.take(2)
    need(one.k <= 19)
    if bits.take(1):
        one.rest = bits.number()
        need(one.n + one.rest <= len(members))
    if one.kind == LISTED:
        one.skip, one.size, one.count = bits.take(4), bits.take(4), bits.number()
        need(one.count <= one.n)
    elif one.kind == SCALED:
        one.size = bits.take(8)
    elif one.kind == FIXED:
        one.size = bits.take(4)
        need(one.size <= 14)
    return one


def _gaps(bits: Bits, one: Class) -> tuple[list[int], list[int]]:
    ranks, signs, following = [], [], 0
    for _ in range(one.n):
        ranks.append(following + bits.rice(one.k, PLACE))
        signs.append(bits.take(1))
        following = ranks[-1] + 1
    return ranks, signs


def _runs(bits: Bits, one: Class) -> tuple[list[int], list[int]]:
    ranks: list[int] = []
    following = 0
    for _ in range(one.rest or 0):
        run = bits.rice(one.k, PLACE)
        need(len(ranks) + run < one.n)
        ranks += range(following, following + run)
        following += run + 1
    ranks += range(following, following + one.n - len(ranks))
    return ranks, [bits.take(1) for _ in range(one.n)]


def _sizes(bits: Bits, one: Class) -> list[int]:
    sizes = [1] * one.n
    if one.kind == FIXED:
        return [_magnitude(bits.rice(one.size, SIZE)) for _ in sizes]
    index = 0
    for _ in range(one.count):
        index += bits.rice(one.skip, PLACE)
        need(index < one.n)
        sizes[index] = _magnitude(bits.rice(one.size, PLACE) + 1)
        index += 1
    return sizes


def _magnitude(less_one: int) -> int:
    need(less_one < 2**15)
    return less_one + 1
