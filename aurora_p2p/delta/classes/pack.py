"""The lists of scan.py -> the payload of a block.

    payload := head stream                 the head is padded to a whole byte
    head    := class... [lengths]
    class   := n [k:5 magnitudes:2 complement:1 [rest] parameters]       nothing more where n is 0
    stream  := (places magnitudes)... scaled...

    places   complement 0: per change a symbol with k, the elements of its class unchanged before it; its sign (1: down)
             complement 1: per unchanged element before the last change (`rest` of them) a symbol with k: how many
                           changed ones precede it since the last unchanged; then all signs
    magnitudes (of a step; those of ONES are 1)
             ONES    0  no parameters
             LISTED  1  skip:4 size:4 count:number; per magnitude above 1 a symbol, changes of 1 skipped, and
                        one, its size - 2
             SCALED  2  scale:8; per change a symbol magnitude - 1 with k = clamp(scale - class byte, 0, 14), at the end
                        of the stream, because reading it takes the base; its length in bits is in `lengths` (24 bits)
                        for each such class but the last
             FIXED   3  k:4; per change a symbol magnitude - 1

n, rest and count are numbers (codes.py). Every parameter is searched on a sample from where theory puts it; the
kind of magnitudes is chosen by cost.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.classes.codes import (
    GAP,
    SAMPLE,
    SIZE,
    best_k,
    list_bits,
    put,
    put_list,
    put_number,
    scaled_k,
    searched_k,
    symbol,
    symbol_bits,
)
from aurora_p2p.delta.classes.scan import LIST, Words
from aurora_p2p.delta.jit import inlined, kernel

ONES, LISTED, SCALED, FIXED = 0, 1, 2, 3

Values = npt.NDArray[np.uint32]
_ONE = np.uint64(1)
_RANK = np.uint64(0xFFFFF)
_BYTE = np.uint64(0xFF)
_36 = np.uint64(36)


@inlined
def excess(change: np.uint64) -> np.uint64:
    """The magnitude of a change's step, less 1: 0 .. 32767."""
    step = (change >> np.uint64(20)) & np.uint64(0xFFFF)
    sign = np.uint64(0) - (step >> np.uint64(15))
    return (((step ^ sign) - sign) & np.uint64(0xFFFF)) - _ONE


@inlined
def falls(change: np.uint64) -> np.uint64:
    """1 for a step down."""
    return (change >> np.uint64(35)) & _ONE


@kernel
def scaled_bits(lists: Words, first: int, n: int, stride: int, scale: int) -> int:
    bits = np.uint64(0)
    for index in range(first, first + n, stride):
        change = lists[index]
        bits += symbol_bits(excess(change), scaled_k(scale, (change >> _36) & _BYTE), SIZE)
    return np.int64(bits)


@kernel
def best_scale(lists: Words, first: int, n: int, mean: float) -> tuple[int, int]:
    """(scale, estimated bits): from the mean's own k at the mean class byte, downhill."""
    stride = 1 + n // SAMPLE
    total, count = 0, 0
    for index in range(first, first + n, stride):
        total += np.int64((lists[index] >> _36) & _BYTE)
        count += 1
    scale = min(total // count + best_k(mean, 14), 255)
    bits = scaled_bits(lists, first, n, stride, scale)
    for direction in (-1, 1):
        while 0 <= scale + direction <= 255:
            other = scaled_bits(lists, first, n, stride, scale + direction)
            if other >= bits:
                break
            scale, bits = scale + direction, other
    return scale, bits * stride


@kernel
def choose(lists: Words, first: int, n: int, sizes: Values, skips: Values, rests: Values) -> tuple[int, int, int, int]:
    """(kind of magnitudes, its parameter, LISTED's skip parameter, LISTED's count) for one class.

    Fills sizes (of all changes, less 1), skips and rests (what LISTED codes).
    """
    larger, total, last, lowest, highest = 0, 0, 0, _BYTE, np.uint64(0)
    for index in range(n):
        change = lists[first + index]
        size, byte = excess(change), (change >> _36) & _BYTE
        sizes[index] = np.uint32(size)
        lowest, highest = min(lowest, byte), max(highest, byte)
        if size:
            skips[larger], rests[larger] = np.uint32(index - last), np.uint32(size - _ONE)
            larger, last = larger + 1, index + 1
            total += np.int64(size)
    if larger == 0:
        return ONES, 0, 0, 0
    skip, rest = searched_k(skips, larger, 15, GAP), searched_k(rests, larger, 15, GAP)
    if 8 * larger <= n:  # each of the others takes a bit or more of every change
        return LISTED, rest, skip, larger
    fixed = searched_k(sizes, n, 14, SIZE)
    listed_bits = list_bits(skips, larger, 1, skip, GAP) + list_bits(rests, larger, 1, rest, GAP)
    fixed_bits = list_bits(sizes, n, 1, fixed, SIZE)
    if highest > lowest:
        scale, scaled = best_scale(lists, first, n, total / n)
        if scaled < min(fixed_bits, listed_bits):
            return SCALED, scale, 0, 0
    if fixed_bits < listed_bits:
        return FIXED, fixed, 0, 0
    return LISTED, rest, skip, larger


@kernel
def gaps_of(lists: Words, first: int, n: int, gaps: Values) -> None:
    """Elements of the class unchanged before each change."""
    following = np.uint64(0)
    for index in range(n):
        rank = lists[first + index] & _RANK
        gaps[index] = np.uint32(rank - following)
        following = rank + _ONE


@kernel
def runs_of(lists: Words, first: int, n: int, runs: Values) -> None:
    """Changed elements before each unchanged one."""
    following, run, end = np.uint64(0), np.uint64(0), 0
    for index in range(first, first + n):
        rank = lists[index] & _RANK
        while following < rank:
            runs[end] = np.uint32(run)
            run = np.uint64(0)
            following += _ONE
            end += 1
        run += _ONE
        following = rank + _ONE


@kernel
def put_gaps(
    lists: Words, first: int, n: int, gaps: Values, k: int, at: int, word: np.uint64, fill: np.uint64
) -> tuple[int, np.uint64, np.uint64]:
    """Gap symbols, each followed by its sign."""
    for index in range(n):
        bits, length = symbol(np.uint64(gaps[index]), np.uint64(k), GAP)
        at, word, fill = put(at, word, fill, bits | (falls(lists[first + index]) << length), length + _ONE)
    return at, word, fill


@kernel
def put_signs(
    lists: Words, first: int, n: int, at: int, word: np.uint64, fill: np.uint64
) -> tuple[int, np.uint64, np.uint64]:
    for index in range(first, first + n):
        at, word, fill = put(at, word, fill, falls(lists[index]), _ONE)
    return at, word, fill


@kernel
def put_scaled(
    lists: Words, first: int, n: int, scale: int, at: int, word: np.uint64, fill: np.uint64
) -> tuple[int, np.uint64, np.uint64]:
    for index in range(first, first + n):
        change = lists[index]
        bits, length = symbol(excess(change), scaled_k(scale, (change >> _36) & _BYTE), SIZE)
        at, word, fill = put(at, word, fill, bits, length)
    return at, word, fill


@kernel
def pack(lists: Words, counts: Words, classes: int, head: int, stream: int, spare: Values) -> tuple[int, int]:
    """Write the head and the stream at two addresses; returns their lengths in bytes.

    Room for 512 bytes and for 12 * BLOCK_ELEMENTS bytes: no change takes more than 12. spare: uint32[4 * LIST].
    """
    zero = np.uint64(0)
    to, hword, hfill = head, zero, zero
    at, word, fill = stream, zero, zero
    gaps, sizes, skips, rests = spare[:LIST], spare[LIST:], spare[2 * LIST :], spare[3 * LIST :]
    scales = np.full(8, -1, np.int64)
    last = -1
    for group in range(classes):
        n, first = np.int64(counts[group]), group * LIST
        to, hword, hfill = put_number(to, hword, hfill, counts[group])
        if n == 0:
            continue
        kind, parameter, skip, count = choose(lists, first, n, sizes, skips, rests)
        rest = np.int64(lists[first + n - 1] & _RANK) + 1 - n
        complement = 20 * n > 11 * (n + rest)
        if complement:
            runs_of(lists, first, n, gaps)
        else:
            gaps_of(lists, first, n, gaps)
        symbols = rest if complement else n
        k = searched_k(gaps, symbols, 19, GAP) if symbols else 0
        word8 = np.uint64(k + 32 * kind + 128 * np.int64(complement))
        to, hword, hfill = put(to, hword, hfill, word8, np.uint64(8))
        if complement:
            to, hword, hfill = put_number(to, hword, hfill, np.uint64(rest))
            at, word, fill = put_list(gaps, rest, k, GAP, at, word, fill)
            at, word, fill = put_signs(lists, first, n, at, word, fill)
        else:
            at, word, fill = put_gaps(lists, first, n, gaps, k, at, word, fill)
        if kind == LISTED:
            to, hword, hfill = put(to, hword, hfill, np.uint64(skip + 16 * parameter), np.uint64(8))
            to, hword, hfill = put_number(to, hword, hfill, np.uint64(count))
            for index in range(count):
                bits, length = symbol(np.uint64(skips[index]), np.uint64(skip), GAP)
                at, word, fill = put(at, word, fill, bits, length)
                bits, length = symbol(np.uint64(rests[index]), np.uint64(parameter), GAP)
                at, word, fill = put(at, word, fill, bits, length)
        elif kind == SCALED:
            to, hword, hfill = put(to, hword, hfill, np.uint64(parameter), np.uint64(8))
            scales[group], last = parameter, group
        elif kind == FIXED:
            to, hword, hfill = put(to, hword, hfill, np.uint64(parameter), np.uint64(4))
            at, word, fill = put_list(sizes, n, parameter, SIZE, at, word, fill)
    for group in range(last + 1):
        if scales[group] < 0:
            continue
        began = 8 * (at - stream) + np.int64(fill)
        at, word, fill = put_scaled(lists, group * LIST, np.int64(counts[group]), scales[group], at, word, fill)
        if group < last:
            length = np.uint64(8 * (at - stream) + np.int64(fill) - began)
            to, hword, hfill = put(to, hword, hfill, length, np.uint64(24))
    return to - head + np.int64(hfill > zero), at - stream + np.int64(fill > zero)
