"""Ranks in classes -> elements of the block: one pass over the base, 64 elements at a time.

The base's own exponents say which class each element is in, so the n-th element of a class is found by counting.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.classes.codes import SIZE, scaled_k, take
from aurora_p2p.delta.classes.pack import SCALED
from aurora_p2p.delta.classes.scan import Halves, Places, Words, key
from aurora_p2p.delta.classes.unpack import KIND, PARAMETER, START, Gaps, N, Steps
from aurora_p2p.delta.jit import inlined, kernel
from aurora_p2p.delta.words import AHEAD_BYTES, at_least, deposit, load16, lowest, ones, prefetch

AHEAD, AT, STOP, CURSOR = 0, 1, 2, 3
"""Rows of `state`, int64[4, 8]: elements of each class before its next change, that change's index, where the class
ends, and the next bit of its SCALED magnitudes."""
_NEVER = 1 << 40
_1, _2, _3, _4, _5, _6, _7 = (np.uint64(bit) for bit in range(1, 8))
_63 = np.uint64(63)
_LOW16 = np.uint64(0xFFFF)

State = npt.NDArray[np.int64]


@kernel
def begin(heads: Words, classes: int, gaps: Gaps, state: State) -> None:
    """Set the state before the first span."""
    start = 0
    for group in range(8):
        state[AHEAD, group] = _NEVER
    for group in range(classes):
        state[AT, group] = start
        if heads[group, N]:
            state[AHEAD, group] = np.int64(gaps[start])
        start += np.int64(heads[group, N])
        state[STOP, group], state[CURSOR, group] = start, np.int64(heads[group, START])


@kernel
def place(
    base: int,
    span: tuple[int, int],
    floors: int,
    payload: tuple[int, int],
    heads: Words,
    gaps: Gaps,
    steps: Steps,
    state: State,
    where: Places,
    old: Halves,
    new: Halves,
) -> int:
    """The changes in one span of a block; returns how many, -1 for malformed bytes.

    base: address of the span's uint16; span: its first element in the block and its length, a multiple of 64;
    payload: address and bytes. where, old, new: places in the block, patterns before and after. Within 64 elements
    changes come class by class.
    """
    first, length = span
    a0, a1, a2, a3 = state[AHEAD, 0], state[AHEAD, 1], state[AHEAD, 2], state[AHEAD, 3]
    a4, a5, a6, a7 = state[AHEAD, 4], state[AHEAD, 5], state[AHEAD, 6], state[AHEAD, 7]
    masks = np.zeros(9, np.uint64)
    masks[0] = ~np.uint64(0)
    found = np.uint64(0)
    for at in range(0, 2 * length, 128):
        prefetch(base + at + AHEAD_BYTES)
        prefetch(base + at + AHEAD_BYTES + 64)
        t1, t2, t3, t4, t5, t6, t7 = at_least(base + at, floors)
        n1, n2, n3, n4 = np.int64(ones(t1)), np.int64(ones(t2)), np.int64(ones(t3)), np.int64(ones(t4))
        n5, n6, n7 = np.int64(ones(t5)), np.int64(ones(t6)), np.int64(ones(t7))
        a0, a1, a2, a3 = a0 - 64 + n1, a1 - n1 + n2, a2 - n2 + n3, a3 - n3 + n4
        a4, a5, a6, a7 = a4 - n4 + n5, a5 - n5 + n6, a6 - n6 + n7, a7 - n7
        if (a0 | a1 | a2 | a3 | a4 | a5 | a6 | a7) < 0:
            masks[1], masks[2], masks[3], masks[4], masks[5], masks[6], masks[7] = t1, t2, t3, t4, t5, t6, t7
            state[AHEAD, 0], state[AHEAD, 1], state[AHEAD, 2], state[AHEAD, 3] = a0, a1, a2, a3
            state[AHEAD, 4], state[AHEAD, 5], state[AHEAD, 6], state[AHEAD, 7] = a4, a5, a6, a7
            hit = (np.uint64(a0) >> _63) | (np.uint64(a1) >> _63) << _1 | (np.uint64(a2) >> _63) << _2
            hit |= (np.uint64(a3) >> _63) << _3 | (np.uint64(a4) >> _63) << _4 | (np.uint64(a5) >> _63) << _5
            hit |= (np.uint64(a6) >> _63) << _6 | (np.uint64(a7) >> _63) << _7
            while hit:
                group = lowest(hit)
                hit &= hit - _1
                mask = masks[group] & ~masks[group + np.uint64(1)]
                size = np.int64(ones(mask))
                ahead, index = state[AHEAD, group] + size, np.uint64(state[AT, group])
                stop = np.uint64(state[STOP, group])
                scaled = heads[group, KIND] == np.uint64(SCALED)
                while ahead < size:
                    lane = lowest(deposit(np.uint64(1) << np.uint64(ahead), mask))
                    here = at + np.int64(lane << np.uint64(1))
                    bits, step = load16(base + here), np.int64(steps[index])
                    if scaled:
                        larger = _scaled(payload, state, group, np.int64(heads[group, PARAMETER]), bits)
                        if larger < 0:
                            return -1
                        step *= larger
                    where[found] = first + (here >> 1)
                    old[found] = np.uint16(bits)
                    new[found] = np.uint16(key((key(bits) + np.uint64(step)) & _LOW16))
                    found += np.uint64(1)
                    index += np.uint64(1)
                    ahead += 1 + np.int64(gaps[index]) if index < stop else _NEVER
                state[AT, group], state[AHEAD, group] = np.int64(index), ahead - size
            a0, a1, a2, a3 = state[AHEAD, 0], state[AHEAD, 1], state[AHEAD, 2], state[AHEAD, 3]
            a4, a5, a6, a7 = state[AHEAD, 4], state[AHEAD, 5], state[AHEAD, 6], state[AHEAD, 7]
    state[AHEAD, 0], state[AHEAD, 1], state[AHEAD, 2], state[AHEAD, 3] = a0, a1, a2, a3
    state[AHEAD, 4], state[AHEAD, 5], state[AHEAD, 6], state[AHEAD, 7] = a4, a5, a6, a7
    return np.int64(found)


@inlined
def _scaled(payload: tuple[int, int], state: State, group: int, scale: int, bits: np.uint64) -> int:
    """The next magnitude of a SCALED class; -1 when it is out of range or past the payload's end."""
    k = scaled_k(scale, (bits >> np.uint64(7)) & np.uint64(0xFF))
    size, at = take(payload[0], np.uint64(state[CURSOR, group]), k, SIZE)
    state[CURSOR, group] = np.int64(at)
    if at > np.uint64(8 * payload[1]) or size > np.uint64(32767):
        return -1
    return np.int64(size) + 1


@kernel
def at_end(heads: Words, classes: int, state: State, size: int) -> bool:
    """Whether every change was placed and every SCALED magnitude read where its length says."""
    expected, scaled = 0, False
    for group in range(classes):
        if state[AT, group] != state[STOP, group]:
            return False
        if heads[group, N] and heads[group, KIND] == np.uint64(SCALED):
            if scaled and np.int64(heads[group, START]) != expected:
                return False
            expected, scaled = state[CURSOR, group], True
    return not scaled or 8 * size - expected < 8
