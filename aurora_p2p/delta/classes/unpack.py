"""The payload of a block -> gaps and steps in each class. Bytes from outside: every number is checked before use.

heads, uint64[8, 8]: one row per class, by the column numbers below. A reader that fails returns FAILED.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.classes.codes import GAP, SIZE, peek, scaled_k, take, take_number
from aurora_p2p.delta.classes.pack import FIXED, LISTED, SCALED
from aurora_p2p.delta.classes.scan import Places, Words
from aurora_p2p.delta.jit import inlined, kernel
from aurora_p2p.delta.words import lowest

N, K, KIND, RUNS, PARAMETER, SKIP, COUNT, START = 0, 1, 2, 3, 4, 5, 6, 7
"""RUNS: unchanged elements coded, plus 1; 0 without complement. START: bit at which SCALED magnitudes begin."""
FAILED = np.uint64(1 << 62)

Gaps = npt.NDArray[np.uint32]
"""Elements of the class unchanged before each change."""
Steps = npt.NDArray[np.int32]
_ONE = np.uint64(1)
_STOP = np.uint64(1 << 60)
_PEEKED = np.uint64(57)
"""Bits that a load has at least, wherever in a byte the first one is."""


@kernel
def read_head(payload: int, size: int, classes: int, length: int, heads: Words) -> np.uint64:
    """Fill `heads`; returns the first bit of the stream."""
    at, end, total, last = np.uint64(0), np.uint64(8 * size), np.uint64(0), -1
    for group in range(classes):
        heads[group] = np.uint64(0)
        n, at = take_number(payload, at)
        heads[group, N] = n
        total += n
        if total > np.uint64(length) or at > end:
            return FAILED
        if n == np.uint64(0):
            continue
        word = peek(payload, at)
        at += np.uint64(8)
        k, kind = word & np.uint64(31), (word >> np.uint64(5)) & np.uint64(3)
        heads[group, K], heads[group, KIND] = k, kind
        if k > np.uint64(19):
            return FAILED
        if word & np.uint64(128):
            rest, at = take_number(payload, at)
            heads[group, RUNS] = rest + _ONE
            if rest + n > np.uint64(length):
                return FAILED
        word = peek(payload, at)
        if kind == np.uint64(LISTED):
            heads[group, SKIP], heads[group, PARAMETER] = word & np.uint64(15), (word >> np.uint64(4)) & np.uint64(15)
            heads[group, COUNT], at = take_number(payload, at + np.uint64(8))
            if heads[group, COUNT] > n:
                return FAILED
        elif kind == np.uint64(SCALED):
            heads[group, PARAMETER] = word & np.uint64(255)
            at += np.uint64(8)
            last = group
        elif kind == np.uint64(FIXED):
            heads[group, PARAMETER] = word & np.uint64(15)
            at += np.uint64(4)
            if heads[group, PARAMETER] > np.uint64(14):
                return FAILED
    for group in range(last):
        if heads[group, KIND] == np.uint64(SCALED) and heads[group, N]:
            heads[group, START] = peek(payload, at) & np.uint64(0xFFFFFF)
            at += np.uint64(24)
            if at > end:  # seven of them would reach past the readable bytes
                return FAILED
    at = (at + np.uint64(7)) & ~np.uint64(7)
    return at if at <= end else FAILED


@inlined
def _gap(word: np.uint64, k: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """(quotient, gap, sign, the bits after it) of a gap symbol at the low end of a word, if it is no escape."""
    quotient = lowest(word | _STOP)
    tail = word >> (quotient + _ONE)
    gap = (quotient << k) | (tail & ((_ONE << k) - _ONE))
    tail >>= k
    return quotient, gap, tail & _ONE, tail >> _ONE


@kernel
def take_gaps(
    payload: int, at: np.uint64, end: np.uint64, k: np.uint64, limit: np.uint64, gaps: Gaps, steps: Steps
) -> np.uint64:
    """Gap symbols and signs. Four at a time where one load has them all: where a symbol starts is known late, and
    waiting for a load each time took twice as long."""
    total, index, n = np.uint64(0), np.uint64(0), np.uint64(gaps.size)
    zeros, width = GAP
    while index < n:
        word = peek(payload, at)
        q0, gap0, down0, rest = _gap(word, k)
        q1, gap1, down1, rest = _gap(rest, k)
        q2, gap2, down2, rest = _gap(rest, k)
        q3, gap3, down3, rest = _gap(rest, k)
        length = q0 + q1 + q2 + q3 + np.uint64(4) * (k + np.uint64(2))
        if length <= _PEEKED and (q0 | q1 | q2 | q3) < np.uint64(16) and index + np.uint64(4) <= n:
            gaps[index], gaps[index + _ONE] = np.uint32(gap0), np.uint32(gap1)
            gaps[index + np.uint64(2)], gaps[index + np.uint64(3)] = np.uint32(gap2), np.uint32(gap3)
            steps[index], steps[index + _ONE] = _sign(down0), _sign(down1)
            steps[index + np.uint64(2)], steps[index + np.uint64(3)] = _sign(down2), _sign(down3)
            total += gap0 + gap1 + gap2 + gap3 + np.uint64(4)
            index += np.uint64(4)
        else:
            length = q0 + k + np.uint64(2)
            if q0 >= zeros:
                word >>= zeros + _ONE
                gap0, down0 = word & ((_ONE << width) - _ONE), (word >> width) & _ONE
                length = zeros + width + np.uint64(2)
            gaps[index], steps[index] = np.uint32(gap0), _sign(down0)
            total += gap0 + _ONE
            index += _ONE
        at += length
        if total > limit or at > end:
            return FAILED
    return at


@inlined
def _sign(down: np.uint64) -> np.int32:
    return np.int32(1 - np.int64(down << _ONE))


@kernel
def take_runs(
    payload: int, at: np.uint64, end: np.uint64, k: np.uint64, rest: int, gaps: Gaps, steps: Steps
) -> np.uint64:
    gaps[:] = np.uint32(0)
    index, n = 0, gaps.size
    for _ in range(rest):
        run, at = take(payload, at, k, GAP)
        index += np.int64(run)
        if at > end or index >= n:  # an unchanged element after the last change is not coded
            return FAILED
        gaps[index] += np.uint32(1)
    if at + np.uint64(n) > end:
        return FAILED
    for index in range(n):
        steps[index] = np.int32(1 - np.int64((peek(payload, at) & _ONE) << _ONE))
        at += _ONE
    return at


@kernel
def take_listed(
    payload: int, at: np.uint64, end: np.uint64, skip: np.uint64, rest: np.uint64, count: int, steps: Steps
) -> np.uint64:
    index, n = 0, steps.size
    for _ in range(count):
        skipped, at = take(payload, at, skip, GAP)
        size, at = take(payload, at, rest, GAP)
        index += np.int64(skipped)
        if index >= n or at > end or size > np.uint64(32766):
            return FAILED
        steps[index] *= np.int32(size + np.uint64(2))
        index += 1
    return at


@kernel
def take_fixed(payload: int, at: np.uint64, end: np.uint64, k: np.uint64, steps: Steps) -> np.uint64:
    for index in range(steps.size):
        size, at = take(payload, at, k, SIZE)
        if at > end or size > np.uint64(32767):
            return FAILED
        steps[index] *= np.int32(size + _ONE)
    return at


@kernel
def take_sizes(payload: int, end: int, start: int, scale: int, class_bytes: Words, sizes: Places) -> int:
    """SCALED magnitudes of one class from bit `start` on; returns where they end, -1 for malformed bytes."""
    at = np.uint64(start)
    for index in range(sizes.size):
        size, at = take(payload, at, scaled_k(scale, class_bytes[index]), SIZE)
        if at > np.uint64(end) or size > np.uint64(32767):
            return -1
        sizes[index] = np.int64(size) + 1
    return np.int64(at)


@kernel
def unpack(payload: int, size: int, classes: int, length: int, heads: Words, gaps: Gaps, steps: Steps) -> int:
    """Gaps and steps of all classes, one class after the other; returns how many, -1 for malformed bytes.

    payload: address of `size` bytes and 16 more; length: elements of the block; gaps, steps: room for `length`.
    Steps of SCALED classes are still +-1.
    """
    end = np.uint64(8 * size)
    at = read_head(payload, size, classes, length, heads)
    done = 0
    for group in range(classes):
        if at == FAILED:
            return -1
        n = np.int64(heads[group, N])
        if n == 0:
            continue
        kind, mine, moved = heads[group, KIND], gaps[done : done + n], steps[done : done + n]
        if heads[group, RUNS]:
            rest = np.int64(heads[group, RUNS]) - 1
            at = take_runs(payload, at, end, heads[group, K], rest, mine, moved)
        else:
            at = take_gaps(payload, at, end, heads[group, K], np.uint64(length), mine, moved)
        if at != FAILED and kind == np.uint64(LISTED):
            count = np.int64(heads[group, COUNT])
            at = take_listed(payload, at, end, heads[group, SKIP], heads[group, PARAMETER], count, moved)
        elif at != FAILED and kind == np.uint64(FIXED):
            at = take_fixed(payload, at, end, heads[group, PARAMETER], moved)
        done += n
    if at == FAILED:
        return -1
    return _scaled_starts(heads, classes, at, end, done)


@kernel
def _scaled_starts(heads: Words, classes: int, at: np.uint64, end: np.uint64, done: int) -> int:
    """Turn the lengths of SCALED magnitudes into where they start. Without any, the stream must end here."""
    scaled = False
    for group in range(classes):
        if heads[group, N] and heads[group, KIND] == np.uint64(SCALED):
            length = heads[group, START]
            heads[group, START] = at
            at += length
            scaled = True
    return done if at <= end and (scaled or end - at < np.uint64(8)) else -1
