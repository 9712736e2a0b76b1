"""Sets of segments as ints: bit i is segment i (the wire's Bitmap, little-endian).

Set algebra over a million segments stays one machine operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from aurora_p2p.wire.limits import MAX_SEGMENTS

if TYPE_CHECKING:
    from random import Random


def bits(mask: int) -> Iterator[int]:
    """Indices of the set bits, ascending; linear in the length of the mask."""
    for position, byte in enumerate(mask.to_bytes(-(-mask.bit_length() // 8), "little")):
        while byte:
            low = byte & -byte
            yield 8 * position + low.bit_length() - 1
            byte ^= low


def mask_of(indices: Iterable[int]) -> int:
    """The set of these indices. Each must be below MAX_SEGMENTS, which bounds the result to 128 KiB."""
    mask = 0
    for index in indices:
        if index >= MAX_SEGMENTS:
            raise ValueError(f"segment {index} is past the limit of {MAX_SEGMENTS}")
        mask |= 1 << index
    return mask


def random_bit(mask: int, rng: Random) -> int:
    """One set bit of a non-empty mask, drawn by a random starting point."""
    start = rng.randrange(mask.bit_length())
    tail = mask >> start
    return start + (tail & -tail).bit_length() - 1
