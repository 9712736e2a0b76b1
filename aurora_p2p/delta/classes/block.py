"""One block of a 16-bit float tensor <-> the payload of mode CLASSES. No framing, no digest, no choice of mode.

Each thread has its own scratch memory: 32 MiB of address space for encoding, of which 8 bytes per change are touched,
6 MiB for the stream, and 5 MiB for decoding.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.classes.pack import SCALED, pack
from aurora_p2p.delta.classes.place import addresses_of, at_end, begin, new_tallies, place
from aurora_p2p.delta.classes.scan import LIST, Halves, Places, Words, new_strip, scan, strip_addresses
from aurora_p2p.delta.classes.unpack import KIND, PARAMETER, START, N, take_sizes, unpack
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, Bits
from aurora_p2p.errors import WireError

READABLE = 16
"""Bytes that must follow a payload in memory."""
_CHUNK = 64


class _Scratch(threading.local):
    """Buffers of one thread; made on first use."""

    def __init__(self) -> None:
        self.lists = np.empty(8 * LIST, np.uint64)
        self.counts = np.empty(16, np.uint64)
        self.head = np.empty(512, np.uint8)
        self.stream = np.empty(12 * BLOCK_ELEMENTS + 64, np.uint8)
        self.spare = np.empty(5 * LIST, np.uint32)
        self.where = np.empty(BLOCK_ELEMENTS, np.int64)
        self.before = np.empty(BLOCK_ELEMENTS, np.uint16)
        self.after = np.empty(BLOCK_ELEMENTS, np.uint16)
        self.heads = np.empty((8, 8), np.uint64)
        self.gaps = np.empty(BLOCK_ELEMENTS, np.uint32)
        self.steps = np.empty(BLOCK_ELEMENTS, np.int32)
        self.state = np.empty((4, 8), np.int64)
        self.tallies = new_tallies()
        self.strip = new_strip()
        self.tally_addresses, self.strip_addresses = addresses_of(self.tallies), strip_addresses(self.strip)
        self.rooms = self.head.ctypes.data, self.stream.ctypes.data


_scratch = _Scratch()


Changes = tuple[Places, Halves, Halves]
"""Places in the block, patterns before, patterns after."""


def encode(base: Bits, new: Bits, classes: ClassMap, offset: int = 0) -> tuple[bytes, Changes]:
    """(payload, changes in ascending order); no bytes when nothing changed.

    base, new: uint16[n] of the same n <= BLOCK_ELEMENTS, C-contiguous. offset is added to each place.
    """
    mine = _scratch
    mine.counts[:] = 0
    floors, found = classes.floors_address, 0
    for first, old, fresh in _spans(base, new):
        found += scan(
            old.ctypes.data,
            fresh.ctypes.data,
            (offset + first, old.size),
            floors,
            classes.class_of,
            mine.strip_addresses,
            mine.lists,
            mine.counts,
            mine.where[found:],
            mine.before[found:],
            mine.after[found:],
        )
    changes = mine.where[:found].copy(), mine.before[:found].copy(), mine.after[:found].copy()
    return (_packed(mine, classes) if found else b""), changes


def encode_listed(ranks: Words, groups: Words, steps: Words, byte: Words, classes: ClassMap) -> bytes:
    """The payload for changes that were found elsewhere (on a GPU), all uint64[n], n > 0, in ascending order.

    ranks: elements of the class before each in the block; groups: its class; steps: key(new) - key(base) modulo 2**16;
    byte: the class byte of its base.
    """
    mine = _scratch
    mine.counts[:] = 0
    words = ranks | (steps << np.uint64(20)) | (byte << np.uint64(36))
    for group in range(classes.classes):
        listed = words[groups == group]
        mine.lists[group * LIST : group * LIST + listed.size] = listed
        mine.counts[group] = listed.size
    return _packed(mine, classes)


def _packed(mine: _Scratch, classes: ClassMap) -> bytes:
    head, stream = pack(mine.lists, mine.counts, classes.classes, *mine.rooms, mine.spare)
    return mine.head[:head].tobytes() + mine.stream[:stream].tobytes()


@dataclass(frozen=True, slots=True)
class Listed:
    """What a payload says before the base is looked at: per class with changes, in ascending order.

    group: the class; ranks: int64[n]; steps: int32[n], +-1 where `scale` is set; scale, bits: the SCALED magnitudes'
    parameter and where they start, or -1.
    """

    group: int
    ranks: Places
    steps: npt.NDArray[np.int32]
    scale: int
    bits: int


def decode_listed(payload: bytes, length: int, classes: ClassMap) -> list[Listed]:
    """The changes of a block of `length` elements by class and rank, to be placed elsewhere. Raises WireError."""
    mine = _scratch
    padded = np.frombuffer(payload + bytes(READABLE), np.uint8)
    if unpack(padded.ctypes.data, len(payload), classes.classes, length, mine.heads, mine.gaps, mine.steps) < 0:
        raise WireError("a class block is malformed or cut short")
    found, start = [], 0
    for group in range(classes.classes):
        n = int(mine.heads[group, N])
        if n:
            span, scaled = slice(start, start + n), mine.heads[group, KIND] == SCALED
            ranks = np.cumsum(mine.gaps[span].astype(np.int64) + 1) - 1
            scale, bits = (int(mine.heads[group, PARAMETER]), int(mine.heads[group, START])) if scaled else (-1, -1)
            found.append(Listed(group, ranks, mine.steps[span].copy(), scale, bits))
        start += n
    return found


def scaled_sizes(payload: bytes, listed: Sequence[Listed], bytes_of: Mapping[int, Words]) -> dict[int, Places]:
    """Magnitudes of the SCALED classes, int64[n] by class, once the class bytes of their bases are known.

    bytes_of: uint64[n] by class. Raises WireError.
    """
    padded = np.frombuffer(payload + bytes(READABLE), np.uint8)
    found, expected = {}, -1
    for one in listed:
        if one.scale < 0:
            continue
        if expected not in (-1, one.bits):
            raise WireError("a class block has magnitudes that end where they should not")
        sizes = np.empty(one.ranks.size, np.int64)
        expected = take_sizes(padded.ctypes.data, 8 * len(payload), one.bits, one.scale, bytes_of[one.group], sizes)
        if expected < 0:
            raise WireError("a class block has a magnitude that is out of range or cut short")
        found[one.group] = sizes
    if expected >= 0 and 8 * len(payload) - expected >= 8:
        raise WireError("a class block has bytes after its end")
    return found


def decode(payload: bytes, base: Bits, classes: ClassMap, offset: int = 0) -> Changes:
    """The changes; offset is added to each place. Raises WireError.

    base: uint16[n], n <= BLOCK_ELEMENTS, C-contiguous; never written.
    """
    mine = _scratch
    padded = np.frombuffer(payload + bytes(READABLE), np.uint8)
    source = (padded.ctypes.data, len(payload))
    total = unpack(*source, classes.classes, base.size, mine.heads, mine.gaps, mine.steps)
    if total < 0:
        raise WireError("a class block is malformed or cut short")
    begin(mine.heads, classes.classes, mine.gaps, mine.state)
    floors, found = classes.floors_address, 0
    where, old, new = np.empty(total, np.int64), np.empty(total, np.uint16), np.empty(total, np.uint16)
    for first, before, _ in _spans(base, base):
        here = slice(found, None)
        placed = place(
            before.ctypes.data,
            (offset + first, before.size),
            floors,
            source,
            mine.heads,
            mine.gaps,
            mine.steps,
            mine.state,
            mine.tally_addresses,
            where[here],
            old[here],
            new[here],
        )
        if placed < 0:
            raise WireError("a class block has a magnitude that is out of range or cut short")
        found += placed
    if not at_end(mine.heads, classes.classes, mine.state, len(payload)):
        raise WireError("a class block does not fit its base, or has bytes after its end")
    if total and base.size % _CHUNK and where.max() >= offset + base.size:  # in what fills up the last chunk
        raise WireError("a class block changes an element past its end")
    return where, old, new


def _spans(base: Bits, new: Bits) -> Iterator[tuple[int, Bits, Bits]]:
    """(first element, base, new) of spans whose length is a multiple of 64: the last one is filled up with zeros."""
    whole = base.size - base.size % _CHUNK
    if whole:
        yield 0, base[:whole], new[:whole]
    if whole < base.size:
        rest = base.size - whole
        before, after = np.zeros(_CHUNK, np.uint16), np.zeros(_CHUNK, np.uint16)
        before[:rest], after[:rest] = base[whole:], new[whole:]
        yield whole, before, after
