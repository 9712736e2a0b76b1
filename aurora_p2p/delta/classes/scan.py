"""Find the changes of a block and sort them into classes: one pass over base and new, 64 elements at a time.

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
from aurora_p2p.delta.words import AHEAD_BYTES, at_least, differing, load16, lowest, ones, prefetch

LIST = BLOCK_ELEMENTS + 8 * 37
"""Words from one class's list to the next: not a power of two, or all lists would meet in the same cache sets."""

Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Halves = npt.NDArray[np.uint16]
_LOW16, _ONE, _LIST = np.uint64(0xFFFF), np.uint64(1), np.uint64(LIST)


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
    lists: Words,
    counts: Words,
    where: Places,
    before: Halves,
    after: Halves,
) -> int:
    """List the changes of one span of a block, after those that are listed already. Returns how many it found.

    base, new: addresses of the span's uint16; span: its first element in the block and its length, a multiple of 64;
    floors: address (ClassMap.floors); lists: uint64[8 * LIST]; where, before, after: each change's place in
    the block, ascending, and its patterns;
    counts: uint64[16], first the length of each list, then the elements seen of each class or a higher one.
    """
    first, length = span
    n0, n1, n2, n3 = counts[8], counts[9], counts[10], counts[11]
    n4, n5, n6, n7 = counts[12], counts[13], counts[14], counts[15]
    seen, masks = np.zeros(9, np.uint64), np.zeros(9, np.uint64)
    masks[0] = ~np.uint64(0)
    found = np.uint64(0)
    for at in range(0, 2 * length, 128):
        for line in (AHEAD_BYTES, AHEAD_BYTES + 64):
            prefetch(base + at + line)
            prefetch(new + at + line)
        t1, t2, t3, t4, t5, t6, t7 = at_least(base + at, floors)
        changed = differing(base + at, new + at)
        if changed:
            masks[1], masks[2], masks[3], masks[4], masks[5], masks[6], masks[7] = t1, t2, t3, t4, t5, t6, t7
            seen[0], seen[1], seen[2], seen[3] = n0, n1, n2, n3
            seen[4], seen[5], seen[6], seen[7] = n4, n5, n6, n7
            while changed:
                lane = lowest(changed)
                changed &= changed - np.uint64(1)
                here = at + np.int64(lane << np.uint64(1))
                old = load16(base + here)
                byte = (old >> np.uint64(7)) & np.uint64(0xFF)
                group = np.uint64(class_of[byte])
                above = group + _ONE
                below = masks[group] & ~masks[above] & ((_ONE << lane) - _ONE)
                rank = seen[group] - seen[above] + ones(below)
                moved = load16(new + here)
                step = (key(moved) - key(old)) & _LOW16
                end = counts[group]
                lists[group * _LIST + end] = rank | (step << np.uint64(20)) | (byte << np.uint64(36))
                counts[group] = end + _ONE
                where[found] = first + (here >> 1)
                before[found], after[found] = np.uint16(old), np.uint16(moved)
                found += _ONE
        n0 += np.uint64(64)
        n1 += ones(t1)
        n2 += ones(t2)
        n3 += ones(t3)
        n4 += ones(t4)
        n5 += ones(t5)
        n6 += ones(t6)
        n7 += ones(t7)
    counts[8], counts[9], counts[10], counts[11] = n0, n1, n2, n3
    counts[12], counts[13], counts[14], counts[15] = n4, n5, n6, n7
    return np.int64(found)
