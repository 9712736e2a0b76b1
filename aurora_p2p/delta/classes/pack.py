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

n, rest and count are numbers (codes.py). Every parameter is searched from where theory puts it, and the
kind of magnitudes chosen, by exact cost: vectors count the bits of 32 symbols in less time than one takes to write.
"""

from __future__ import annotations

import numpy as np

from aurora_p2p.delta.classes.codes import (
    GAP,
    SIZE,
    Values,
    best_k,
    fill_up,
    put,
    put_list,
    put_number,
    scaled_k,
    searched_k,
    symbol,
)
from aurora_p2p.delta.classes.scan import LIST, Words
from aurora_p2p.delta.jit import inlined, kernel
from aurora_p2p.delta.words import SINGLES, scaled_rice_bits

ONES, LISTED, SCALED, FIXED = 0, 1, 2, 3

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
def scaled_bits(sizes: Values, octaves: Values, n: int, scale: int) -> int:
    """Bits of n magnitudes less 1 with a parameter for each class byte; both lists are filled up."""
    (zeros, width), at = SIZE, (np.int64(sizes.ctypes.data), np.int64(octaves.ctypes.data))
    bits, shift, escape = np.uint64(0), np.uint64(scale), zeros + _ONE + width
    for index in range(0, 4 * n, 4 * SINGLES):
        bits += scaled_rice_bits(at[0] + index, at[1] + index, shift, np.uint64(14), zeros, escape)
    return np.int64(bits) - (-n % SINGLES) * (1 + min(scale, 14))


@kernel
def best_scale(sizes: Values, octaves: Values, n: int, mean: float, mean_byte: int) -> tuple[int, int]:
    """(scale, bits): from the mean's own k at the mean class byte, downhill."""
    scale = min(mean_byte + best_k(mean, 14), 255)
    bits = scaled_bits(sizes, octaves, n, scale)
    for direction in (-1, 1):
        while 0 <= scale + direction <= 255:
            other = scaled_bits(sizes, octaves, n, scale + direction)
            if other >= bits:
                break
            scale, bits = scale + direction, other
    return scale, bits


@kernel
def survey(lists: Words, first: int, n: int, gaps: Values, sizes: Values, octaves: Values) -> tuple[int, int, int]:
    """One class's changes as lists that are filled up: gaps (elements of the class unchanged before each), sizes
    (magnitudes less 1) and octaves (class bytes). Returns the sums of the latter two, and whether class bytes differ.

    A loop that is compiled to vectors: nothing depends on the change before, and indices are unsigned.
    """
    total, weight, differ = np.uint64(0), np.uint64(0), np.uint64(0)
    start, byte0 = np.uint64(first), (lists[first] >> _36) & _BYTE
    gaps[0] = np.uint32(lists[start] & _RANK)
    for index in range(_ONE, np.uint64(n)):
        gaps[index] = np.uint32((lists[start + index] & _RANK) - (lists[start + index - _ONE] & _RANK) - _ONE)
    for index in range(np.uint64(n)):
        change = lists[start + index]
        size, byte = excess(change), (change >> _36) & _BYTE
        sizes[index], octaves[index] = np.uint32(size), np.uint32(byte)
        total, weight, differ = total + size, weight + byte, differ | (byte ^ byte0)
    fill_up(gaps, n)
    fill_up(sizes, n)
    fill_up(octaves, n)
    return np.int64(total), np.int64(weight), np.int64(differ)


@kernel
def above_one(sizes: Values, n: int, skips: Values, rests: Values) -> tuple[int, int]:
    """What LISTED codes, filled up: changes of 1 skipped before each larger one, and its size - 2, without a branch.

    Returns how many there are, and how many changes up to the last of them.
    """
    larger, last = np.uint64(0), np.uint64(0)
    for index in range(np.uint64(n)):
        size = np.uint64(sizes[index])
        skips[larger], rests[larger] = np.uint32(index - last), np.uint32(size - _ONE)
        above = size != np.uint64(0)
        larger += np.uint64(above)
        last = index + _ONE if above else last
    fill_up(skips, np.int64(larger))
    fill_up(rests, np.int64(larger))
    return np.int64(larger), np.int64(last)


@kernel
def choose(
    sums: tuple[int, int, int], n: int, sizes: Values, octaves: Values, skips: Values, rests: Values
) -> tuple[int, int, int, int]:
    """(kind of magnitudes, its parameter, LISTED's skip parameter, LISTED's count) for one class, from its survey.

    Fills skips and rests unless all magnitudes are 1.
    """
    total, weight, differ = sums
    if total == 0:
        return ONES, 0, 0, 0
    larger, last = above_one(sizes, n, skips, rests)
    skip, skip_bits = searched_k(skips, larger, last - larger, 15, GAP)
    rest, rest_bits = searched_k(rests, larger, total - larger, 15, GAP)
    if 8 * larger <= n:  # each of the others takes a bit or more of every change
        return LISTED, rest, skip, larger
    fixed, fixed_bits = searched_k(sizes, n, total, 14, SIZE)
    listed_bits = skip_bits + rest_bits
    if differ:
        scale, scaled = best_scale(sizes, octaves, n, total / n, weight // n)
        if scaled < min(fixed_bits, listed_bits):
            return SCALED, scale, 0, 0
    if fixed_bits < listed_bits:
        return FIXED, fixed, 0, 0
    return LISTED, rest, skip, larger


@kernel
def runs_of(lists: Words, first: int, n: int, runs: Values) -> int:
    """Changed elements before each unchanged one, filled up; returns their sum."""
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
    fill_up(runs, end)
    return n - np.int64(run)


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

    Room for 512 bytes and for 12 * BLOCK_ELEMENTS bytes: no change takes more than 12. spare: uint32[5 * LIST].
    """
    zero = np.uint64(0)
    to, hword, hfill = head, zero, zero
    at, word, fill = stream, zero, zero
    gaps, sizes, skips, rests, octaves = (
        spare[:LIST],
        spare[LIST:],
        spare[2 * LIST :],
        spare[3 * LIST :],
        spare[4 * LIST :],
    )
    scales = np.full(8, -1, np.int64)
    last = -1
    for group in range(classes):
        n, first = np.int64(counts[group]), group * LIST
        to, hword, hfill = put_number(to, hword, hfill, counts[group])
        if n == 0:
            continue
        sums = survey(lists, first, n, gaps, sizes, octaves)
        kind, parameter, skip, count = choose(sums, n, sizes, octaves, skips, rests)
        rest = np.int64(lists[first + n - 1] & _RANK) + 1 - n
        complement = 20 * n > 11 * (n + rest)
        symbols, total, k = n, rest, 0
        if complement:
            symbols, total = rest, runs_of(lists, first, n, gaps)
        if symbols:
            k, _ = searched_k(gaps, symbols, total, 19, GAP)
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
