"""Find the changes of a block and sort them into classes: one pass over base and new, 64 elements at a time.

Of CHUNKS chunks it is first counted how many elements lie in each class and written down where changes are; then each
change finds its rank in those counts. Neither step has a branch that depends on where changes are, unless they crowd:
a processor that guesses wrong waits as long as for a chunk's worth of memory.

A change becomes one word of its class's list, in ascending rank:

    bits 0..19   rank: elements of the class before it in the block
         20..35  step: key(new) - key(base) modulo 2**16 (ulp.py)
         36..43  class byte of the base
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.jit import inlined, kernel
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS
from aurora_p2p.delta.words import (
    AHEAD_BYTES,
    at_least,
    differing,
    load16,
    load32,
    load64,
    lowest,
    ones,
    prefetch,
    store32,
    store64,
)

LIST = BLOCK_ELEMENTS + 8 * 37
"""Words from one class's list to the next: not a power of two, or all lists would meet in the same cache sets."""
CHUNKS = 32
"""Chunks between the two steps: base and new of one turn, 8 KiB, stay in L1 (16 and 64 measured alike)."""
_AT_ONCE, _MORE = 2, 4
"""Places written per chunk whether there are so many or not, and per turn of the loop that writes further ones."""

Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Halves = npt.NDArray[np.uint16]
Singles = npt.NDArray[np.uint32]
Strip = tuple[Words, Singles, Words]
_LOW16, _ONE, _LIST = np.uint64(0xFFFF), np.uint64(1), np.uint64(LIST)
_TOP = np.uint64(1 << 63)


def new_strip() -> Strip:
    """Memory for CHUNKS chunks: masks uint64[CHUNKS, 9], counts uint32[CHUNKS, 9], places of changes uint64[...]."""
    masks = np.zeros((CHUNKS, 9), np.uint64)
    masks[:, 0] = ~np.uint64(0)
    return masks, np.zeros((CHUNKS, 9), np.uint32), np.zeros(64 * CHUNKS + _AT_ONCE + _MORE, np.uint64)


def strip_addresses(strip: Strip) -> tuple[int, int, int]:
    """For `scan`. A kernel given addresses does not keep the arrays alive."""
    masks, counts, places = strip
    return masks.ctypes.data, counts.ctypes.data, places.ctypes.data


@inlined
def key(bits: np.uint64) -> np.uint64:
    """The pattern of a 16-bit float as an ordered integer modulo 2**16; its own inverse."""
    return bits ^ (np.uint64(0x7FFF) * (bits >> np.uint64(15)))


@kernel
def scan(
    base: int,
    new: int,
    span: tuple[int, int],
    floors: int,
    class_of: npt.NDArray[np.uint8],
    strip: tuple[int, int, int],
    lists: Words,
    counts: Words,
    where: Places,
    before: Halves,
    after: Halves,
) -> int:
    """List the changes of one span of a block, after those that are listed already. Returns how many it found.

    base, new: addresses of the span's uint16; span: its first element in the block and its length, a multiple of 64;
    floors: address (ClassMap.floors); strip: strip_addresses of its memory; lists: uint64[8 * LIST]; where, before,
    after: each change's place in the block, ascending, and its patterns;
    counts: uint64[16], first the length of each list, then the elements seen of each class or a higher one.
    """
    (first, length), (masks, sums, places) = span, strip
    seen = (counts[8], counts[9], counts[10], counts[11], counts[12], counts[13], counts[14], counts[15])
    found = np.uint64(0)
    for start in range(0, length, 64 * CHUNKS):
        chunks = min(CHUNKS, (length - start) // 64)
        old, fresh = base + 2 * start, new + 2 * start
        end, seen = _spot(old, fresh, chunks, floors, strip, seen)
        for spot in range(places, end, 8):
            place = np.int64(load64(spot))
            bits, moved = load16(old + 2 * place), load16(fresh + 2 * place)
            byte = (bits >> np.uint64(7)) & np.uint64(0xFF)
            group = np.uint64(class_of[byte])
            row = 9 * (place >> 6) + np.int64(group)
            mask = load64(masks + 8 * row) & ~load64(masks + 8 * row + 8)
            below = mask & ((_ONE << (np.uint64(place) & np.uint64(63))) - _ONE)
            rank = load32(sums + 4 * row) - load32(sums + 4 * row + 4) + ones(below)
            step = (key(moved) - key(bits)) & _LOW16
            last = counts[group]
            lists[group * _LIST + last] = rank | (step << np.uint64(20)) | (byte << np.uint64(36))
            counts[group] = last + _ONE
            where[found] = first + start + place
            before[found], after[found] = np.uint16(bits), np.uint16(moved)
            found += _ONE
    for group in range(8):
        counts[8 + group] = seen[group]
    return np.int64(found)


Eight = tuple[np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64]


@inlined
def _spot(base: int, new: int, chunks: int, floors: int, strip: tuple[int, int, int], seen: Eight) -> tuple[int, Eight]:
    """Of up to CHUNKS chunks: which elements are in each class or a higher one, how many were before the chunk, and
    where changes are. Returns where their list ends, and `seen` after the chunks."""
    n0, n1, n2, n3, n4, n5, n6, n7 = seen
    mask, count, end = strip
    for at in range(0, 128 * chunks, 128):
        for line in (AHEAD_BYTES, AHEAD_BYTES + 64):
            prefetch(base + at + line)
            prefetch(new + at + line)
        t1, t2, t3, t4, t5, t6, t7 = at_least(base + at, floors)
        changed = differing(base + at, new + at)
        _store_seven(mask + 8, t1, t2, t3, t4, t5, t6, t7)
        _store_eight(count, n0, n1, n2, n3, n4, n5, n6, n7)
        mask, count = mask + 72, count + 36
        n0, n1, n2, n3 = n0 + np.uint64(64), n1 + ones(t1), n2 + ones(t2), n3 + ones(t3)
        n4, n5, n6, n7 = n4 + ones(t4), n5 + ones(t5), n6 + ones(t6), n7 + ones(t7)
        end = _list_places(np.uint64(at >> 1), changed, end)
    return end, (n0, n1, n2, n3, n4, n5, n6, n7)


@inlined
def _list_places(first: np.uint64, changed: np.uint64, to: int) -> int:
    """Write first + i for each set bit i; returns the end of them. What is written beyond it does not count."""
    end = to + 8 * np.int64(ones(changed))
    for _ in range(_AT_ONCE):
        store64(to, first + lowest(changed | _TOP))
        changed &= changed - _ONE
        to += 8
    while changed:
        for _ in range(_MORE):
            store64(to, first + lowest(changed | _TOP))
            changed &= changed - _ONE
            to += 8
    return end


@inlined
def _store_seven(
    at: int, t1: np.uint64, t2: np.uint64, t3: np.uint64, t4: np.uint64, t5: np.uint64, t6: np.uint64, t7: np.uint64
) -> None:
    store64(at, t1)
    store64(at + 8, t2)
    store64(at + 16, t3)
    store64(at + 24, t4)
    store64(at + 32, t5)
    store64(at + 40, t6)
    store64(at + 48, t7)


@inlined
def _store_eight(
    at: int,
    n0: np.uint64,
    n1: np.uint64,
    n2: np.uint64,
    n3: np.uint64,
    n4: np.uint64,
    n5: np.uint64,
    n6: np.uint64,
    n7: np.uint64,
) -> None:
    store32(at, n0)
    store32(at + 4, n1)
    store32(at + 8, n2)
    store32(at + 12, n3)
    store32(at + 16, n4)
    store32(at + 20, n5)
    store32(at + 24, n6)
    store32(at + 28, n7)
