"""Ranks in classes -> elements of the block: one pass over the base.

The base's own exponents say which class each element is in, so the n-th element of a class is found by counting: first
how many of each class lie up to the end of each chunk of 64 elements, then, per change, how many chunks that is past.
Neither step has a branch that depends on where the changes are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.classes.codes import SIZE, scaled_k, take
from aurora_p2p.delta.classes.pack import SCALED
from aurora_p2p.delta.classes.scan import Halves, Places, Words, key
from aurora_p2p.delta.classes.unpack import KIND, PARAMETER, START, Gaps, N, Steps
from aurora_p2p.delta.jit import inlined, kernel
from aurora_p2p.delta.words import (
    AHEAD_BYTES,
    at_least,
    deposit,
    load16,
    load64,
    lowest,
    ones,
    passed,
    prefetch,
    store16,
    store64,
)

AHEAD, AT, STOP, CURSOR = 0, 1, 2, 3
"""Rows of `state`, int64[4, 8]: elements of each class before its next change, that change's index, where the class
ends, and the next bit of its SCALED magnitudes."""
CHUNKS = 64
"""Chunks of 64 elements that are counted before their changes are placed: 8 KiB of the base, which stay in L1."""
REACH = 64 * CHUNKS
COUNTS = CHUNKS + 2
"""Counts of one class, behind a 0; not a power of two, or all classes would meet in the same cache sets."""
_NEVER = 1 << 40
_LOW16 = np.uint64(0xFFFF)

State = npt.NDArray[np.int64]
Tallies = tuple[Words, Halves]


def new_tallies() -> Tallies:
    """Memory for what is counted of REACH elements: masks uint64[9, CHUNKS], counts uint16[8, COUNTS]."""
    masks, counts = np.zeros(9 * CHUNKS, np.uint64), np.zeros(8 * COUNTS, np.uint16)
    masks[:CHUNKS] = ~np.uint64(0)
    return masks, counts


def addresses_of(tallies: Tallies) -> tuple[int, int]:
    """Of the masks, and of the counts behind the 0. A kernel given addresses does not keep the arrays alive."""
    masks, counts = tallies
    return masks.ctypes.data, counts.ctypes.data + counts.itemsize


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
    tallies: tuple[int, int],
    where: Places,
    old: Halves,
    new: Halves,
) -> int:
    """The changes in one span of a block; returns how many, -1 for malformed bytes.

    base: address of the span's uint16; span: its first element in the block and its length, a multiple of 64;
    payload: address and bytes; tallies: addresses_of its memory. where, old, new: places in the block, patterns before
    and after. Within REACH elements changes come class by class.
    """
    (first, length), (masks, counts) = span, tallies
    found = np.uint64(0)
    for start in range(0, length, REACH):
        _count(base + 2 * start, min(CHUNKS, (length - start) // 64), floors, masks, counts)
        for group in range(8):
            row = (counts + 2 * COUNTS * group, masks + 8 * CHUNKS * group)
            size = np.int64(load16(row[0] + 2 * CHUNKS - 2))
            ahead = state[AHEAD, group]
            if ahead < size:
                index, stop = np.uint64(state[AT, group]), np.uint64(state[STOP, group])
                scaled = heads[group, KIND] == np.uint64(SCALED)
                cursor, scale = np.uint64(state[CURSOR, group]), np.int64(heads[group, PARAMETER])
                while ahead < size and not scaled:  # two loops, so that neither asks which one it is at every change
                    at = start + _find(row, ahead)
                    bits, step = load16(base + 2 * at), np.int64(steps[index])
                    where[found], old[found], new[found] = first + at, np.uint16(bits), _moved(bits, step)
                    found += np.uint64(1)
                    index += np.uint64(1)
                    ahead += 1 + np.int64(gaps[index]) if index < stop else _NEVER
                while ahead < size:
                    at = start + _find(row, ahead)
                    bits, step = load16(base + 2 * at), np.int64(steps[index])
                    k = scaled_k(scale, (bits >> np.uint64(7)) & np.uint64(0xFF))
                    larger, cursor = take(payload[0], cursor, k, SIZE)
                    if cursor > np.uint64(8 * payload[1]) or larger > np.uint64(32767):
                        return -1
                    step *= np.int64(larger) + 1
                    where[found], old[found], new[found] = first + at, np.uint16(bits), _moved(bits, step)
                    found += np.uint64(1)
                    index += np.uint64(1)
                    ahead += 1 + np.int64(gaps[index]) if index < stop else _NEVER
                state[AT, group], state[CURSOR, group] = np.int64(index), np.int64(cursor)
            state[AHEAD, group] = ahead - size
    return np.int64(found)


@inlined
def _count(base: int, chunks: int, floors: int, masks: int, counts: int) -> None:
    """Of up to CHUNKS chunks of 64 elements: which are in each class or a higher one, and how many in each so far.

    masks: address of uint64[9, CHUNKS], whose first row is full and last row empty; counts: of uint16[8, COUNTS], one
    behind a 0. Missing chunks have no elements.
    """
    n1 = n2 = n3 = n4 = n5 = n6 = n7 = np.uint64(0)
    for chunk in range(chunks):
        lanes, mask, count = base + 128 * chunk, masks + 8 * chunk, counts + 2 * chunk
        prefetch(lanes + AHEAD_BYTES)
        prefetch(lanes + AHEAD_BYTES + 64)
        t1, t2, t3, t4, t5, t6, t7 = at_least(lanes, floors)
        _store_masks(mask, t1, t2, t3, t4, t5, t6, t7)
        n1 += ones(t1)
        n2 += ones(t2)
        n3 += ones(t3)
        n4 += ones(t4)
        n5 += ones(t5)
        n6 += ones(t6)
        n7 += ones(t7)
        _store_counts(count, np.uint64(64 * chunk + 64), n1, n2, n3, n4, n5, n6, n7)
    for chunk in range(chunks, CHUNKS):
        _store_counts(counts + 2 * chunk, np.uint64(64 * chunks), n1, n2, n3, n4, n5, n6, n7)


@inlined
def _store_masks(
    at: int, t1: np.uint64, t2: np.uint64, t3: np.uint64, t4: np.uint64, t5: np.uint64, t6: np.uint64, t7: np.uint64
) -> None:
    row = 8 * CHUNKS
    store64(at + row, t1)
    store64(at + 2 * row, t2)
    store64(at + 3 * row, t3)
    store64(at + 4 * row, t4)
    store64(at + 5 * row, t5)
    store64(at + 6 * row, t6)
    store64(at + 7 * row, t7)


@inlined
def _store_counts(
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
    row = 2 * COUNTS
    store16(at, n0 - n1)
    store16(at + row, n1 - n2)
    store16(at + 2 * row, n2 - n3)
    store16(at + 3 * row, n3 - n4)
    store16(at + 4 * row, n4 - n5)
    store16(at + 5 * row, n5 - n6)
    store16(at + 6 * row, n6 - n7)
    store16(at + 7 * row, n7)


@inlined
def _find(row: tuple[int, int], rank: int) -> int:
    """Where the element of this rank in its class is, among REACH. row: addresses of the class's counts and masks."""
    counts, masks = row
    chunk = np.int64(passed(counts, rank))
    before = load16(counts + 2 * chunk - 2)
    mask = load64(masks + 8 * chunk) & ~load64(masks + 8 * CHUNKS + 8 * chunk)
    return (chunk << 6) + np.int64(lowest(deposit(np.uint64(1) << (np.uint64(rank) - before), mask)))


@inlined
def _moved(bits: np.uint64, step: int) -> np.uint16:
    return np.uint16(key((key(bits) + np.uint64(step)) & _LOW16))


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
