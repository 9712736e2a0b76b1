"""Rice codes for lists of non-negative integers (Rice and Plaunt 1971).

    list  := k (1 byte) codes, zero-padded to a whole byte; an empty list is no bytes
    code  := q zeros, 1, the k low bits         q = value >> k < MAX_ZEROS
           | MAX_ZEROS zeros, 1, `width` bits   else (the escape bounds every code, so a decoder's reads are bounded)

Bits fill each byte from the least significant end. The count and the width are the reader's knowledge, never in here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.jit import kernel
from aurora_p2p.errors import WireError

MAX_ZEROS = 24
Values = npt.NDArray[np.uint64]

_ONE = np.uint64(1)
_ALL = np.uint64(2**64 - 1)
_SLACK_WORDS = 3
"""A code is at most 25 + 64 bits: reading or writing one at the very end touches this many words past it."""


def encode(values: Values, width: int) -> bytes:
    """A list of values below 2**width, width 1 .. 64, with the cheapest k."""
    if values.size == 0:
        return b""
    k, bits = _cheapest(values, width)
    words = np.zeros((bits >> 6) + _SLACK_WORDS, np.uint64)
    _write(values, k, width, words)
    return bytes((k,)) + words.astype("<u8", copy=False).tobytes()[: (bits + 7) >> 3]


def decode(data: bytes, start: int, count: int, width: int) -> tuple[Values, int]:
    """`count` values at data[start:], and where they end. Raises WireError.

    Memory is bounded by the bytes present: a code has at least one bit. A value may exceed 2**width if the bytes lie.
    """
    if count == 0:
        return np.empty(0, np.uint64), start
    available = len(data) - start - 1
    if available < 0 or count > available * 8 or data[start] >= width:
        raise WireError("a Rice list is cut short, or its parameter is out of range")
    padded = data[start + 1 :] + bytes(-available % 8 + 8 * _SLACK_WORDS)
    values = np.empty(count, np.uint64)
    bits = int(_read(np.frombuffer(padded, "<u8").astype(np.uint64), available * 8, data[start], width, values))
    if bits < 0:
        raise WireError("a Rice list has an impossible code or is cut short")
    return values, start + 1 + ((bits + 7) >> 3)


@kernel
def _cost(values: Values, k: int, width: int) -> int:
    quotients = np.uint64(0)
    escapes = np.uint64(0)
    shift, limit = np.uint64(k), np.uint64(MAX_ZEROS)
    for value in values:
        quotient = value >> shift
        quotients += min(quotient, limit)
        escapes += np.uint64(quotient >= limit)
    return np.int64(quotients) + values.size * (1 + k) + np.int64(escapes) * (width - k)  # type: ignore[return-value]


@kernel
def _cheapest(values: Values, width: int) -> tuple[int, int]:
    """(k, bits): descends from the mean bit length, which one far outlier cannot move, to a local minimum."""
    total = 0
    for value in values:
        rest = value >> _ONE
        while rest:
            total += 1
            rest >>= _ONE
    k = min(total // values.size, width - 1)
    bits = _cost(values, k, width)
    for direction in (-1, 1):
        while 0 <= k + direction < width:
            other = _cost(values, k + direction, width)
            if other >= bits:
                break
            k, bits = k + direction, other
    return k, bits


@kernel
def _put(words: Values, at: int, value: np.uint64, bits: int) -> int:
    index, shift = at >> 6, at & 63
    words[index] |= value << np.uint64(shift)
    if shift + bits > 64:
        words[index + 1] |= value >> np.uint64(64 - shift)
    return at + bits


@kernel
def _write(values: Values, k: int, width: int, words: Values) -> None:
    at = 0
    low = (_ONE << np.uint64(k)) - _ONE
    for value in values:
        quotient = value >> np.uint64(k)
        if quotient < np.uint64(MAX_ZEROS):
            at = _put(words, at, _ONE << quotient, np.int64(quotient) + 1)  # type: ignore[arg-type]
            at = _put(words, at, value & low, k)
        else:
            at = _put(words, at, _ONE << np.uint64(MAX_ZEROS), MAX_ZEROS + 1)
            at = _put(words, at, value, width)


@kernel
def _peek(words: Values, at: int) -> np.uint64:
    index, shift = at >> 6, np.uint64(at & 63)
    return (words[index] >> shift) | ((words[index + 1] << _ONE) << (np.uint64(63) - shift))  # type: ignore[no-any-return]


@kernel
def _read(words: Values, end: int, k: int, width: int, values: Values) -> int:
    """Fill `values`; returns the bits read, -1 when a code is impossible or passes `end`."""
    at = 0
    low, raw = (_ONE << np.uint64(k)) - _ONE, _ALL >> np.uint64(64 - width)
    for index in range(values.size):
        window = _peek(words, at)
        zeros = 0
        while zeros <= MAX_ZEROS and not window & _ONE:
            window >>= _ONE
            zeros += 1
        at += zeros + 1
        if zeros < MAX_ZEROS:
            values[index] = (np.uint64(zeros) << np.uint64(k)) | (_peek(words, at) & low)
            if values[index] >> np.uint64(k) != np.uint64(zeros):  # more than 64 bits
                return -1
            at += k
        else:
            values[index] = _peek(words, at) & raw
            at += width
        if zeros > MAX_ZEROS or at > end:
            return -1
    return at
