"""Bit by bit: the symbols of the class coder, written and read. Pieces of kernels; nothing here is called from Python.

    symbol   q zeros, 1, the k low bits of value                       q = value >> k, below `zeros`
             `zeros` zeros, 1, `width` bits of value                    else (an escape)
    number   5 bits: how many bits value has; then those below its highest

Bits fill bytes from the least significant end. A writer is (address, word, fill): the bits not yet complete as a byte,
and how many (0..7). A reader is (address of the payload, bit position); 16 readable bytes must follow the payload.
No symbol is longer than 46 bits, so one load or one store carries each.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.jit import inlined, kernel
from aurora_p2p.delta.words import SINGLES, leading, load64, lowest, rice_bits, store64

GAP = (np.uint64(24), np.uint64(20))
"""(zeros, width) of gaps, runs and skips: a rank needs 19 bits."""
SIZE = (np.uint64(12), np.uint64(15))
"""(zeros, width) of magnitudes less 1, at most 32767."""
Values = npt.NDArray[np.uint32]
_LOG_GOLDEN = math.log((math.sqrt(5) - 1) / 2)
_ONE = np.uint64(1)
_STOP = np.uint64(1 << 60)


@inlined
def put(
    at: int, word: np.uint64, fill: np.uint64, value: np.uint64, bits: np.uint64
) -> tuple[int, np.uint64, np.uint64]:
    """Append `bits` (at most 56) of value; returns the writer."""
    word |= value << fill
    fill += bits
    store64(at, word)
    return at + np.int64(fill >> np.uint64(3)), word >> (fill & np.uint64(56)), fill & np.uint64(7)


@inlined
def put_number(at: int, word: np.uint64, fill: np.uint64, value: np.uint64) -> tuple[int, np.uint64, np.uint64]:
    bits = np.uint64(0)
    if value:
        bits = np.uint64(64) - leading(value)
    at, word, fill = put(at, word, fill, bits, np.uint64(5))
    if bits > _ONE:
        at, word, fill = put(at, word, fill, value ^ (_ONE << (bits - _ONE)), bits - _ONE)
    return at, word, fill


@inlined
def symbol(value: np.uint64, k: np.uint64, kind: tuple[np.uint64, np.uint64]) -> tuple[np.uint64, np.uint64]:
    """(word, bits) of a symbol."""
    zeros, width = kind
    quotient = value >> k
    if quotient < zeros:
        return (((value & ((_ONE << k) - _ONE)) << _ONE) | _ONE) << quotient, quotient + _ONE + k
    return ((value << _ONE) | _ONE) << zeros, zeros + _ONE + width


@inlined
def symbol_bits(value: np.uint64, k: np.uint64, kind: tuple[np.uint64, np.uint64]) -> np.uint64:
    zeros, width = kind
    quotient = value >> k
    return quotient + _ONE + k if quotient < zeros else zeros + _ONE + width


@inlined
def peek(payload: int, at: np.uint64) -> np.uint64:
    """The bits from `at` on: at least 57 of them."""
    return load64(payload + np.int64(at >> np.uint64(3))) >> (at & np.uint64(7))


@inlined
def take(payload: int, at: np.uint64, k: np.uint64, kind: tuple[np.uint64, np.uint64]) -> tuple[np.uint64, np.uint64]:
    """(value, where it ends) of a symbol."""
    zeros, width = kind
    word = peek(payload, at)
    quotient = lowest(word | _STOP)
    if quotient < zeros:
        low = (word >> (quotient + _ONE)) & ((_ONE << k) - _ONE)
        return (quotient << k) | low, at + quotient + _ONE + k
    return (word >> (zeros + _ONE)) & ((_ONE << width) - _ONE), at + zeros + _ONE + width


@inlined
def take_number(payload: int, at: np.uint64) -> tuple[np.uint64, np.uint64]:
    word = peek(payload, at)
    bits = word & np.uint64(31)
    at += np.uint64(5)
    if bits == np.uint64(0):
        return np.uint64(0), at
    high = _ONE << (bits - _ONE)
    return high | ((word >> np.uint64(5)) & (high - _ONE)), at + bits - _ONE


@inlined
def scaled_k(scale: int, byte: np.uint64) -> np.uint64:
    """k of a magnitude that halves with each exponent."""
    return np.uint64(min(max(scale - np.int64(byte), 0), 14))


@kernel
def best_k(mean: float, highest: int) -> int:
    """The Rice parameter for geometric values of this mean (Kiely 2004, "Selecting the Golomb parameter")."""
    if mean <= 0.0:
        return 0
    k = 1 + math.floor(math.log2(_LOG_GOLDEN / math.log(mean / (mean + 1.0))))
    return min(max(k, 0), highest)


@kernel
def fill_up(values: Values, n: int) -> None:
    """Zeros behind a list, up to the next multiple of SINGLES."""
    for index in range(n, n + -n % SINGLES):
        values[index] = np.uint32(0)


@kernel
def list_bits(values: Values, n: int, k: int, kind: tuple[np.uint64, np.uint64]) -> int:
    """Bits of the symbols of a list that is filled up."""
    (zeros, width), at, parameter = kind, np.int64(values.ctypes.data), np.uint64(k)
    bits = np.uint64(0)
    for index in range(0, n, SINGLES):
        bits += rice_bits(at + 4 * index, parameter, zeros, zeros + _ONE + width)
    return np.int64(bits) - (-n % SINGLES) * (1 + k)


@kernel
def searched_k(values: Values, n: int, total: int, highest: int, kind: tuple[np.uint64, np.uint64]) -> tuple[int, int]:
    """(Rice parameter, bits) of a list of n > 0 values that is filled up: from that of geometric values downhill.

    total: their sum.
    """
    k = best_k(total / n, highest)
    bits = list_bits(values, n, k, kind)
    for direction in (-1, 1):
        while 0 <= k + direction <= highest:
            other = list_bits(values, n, k + direction, kind)
            if other >= bits:
                break
            k, bits = k + direction, other
    return k, bits


@kernel
def put_list(
    values: Values,
    n: int,
    k: int,
    kind: tuple[np.uint64, np.uint64],
    at: int,
    word: np.uint64,
    fill: np.uint64,
) -> tuple[int, np.uint64, np.uint64]:
    for index in range(n):
        bits, length = symbol(np.uint64(values[index]), np.uint64(k), kind)
        at, word, fill = put(at, word, fill, bits, length)
    return at, word, fill
