"""Changes as gaps and steps in one list each, for any width: what is not a 16-bit float.

    changes := count gaps signs exceptions [skips sizes]
      gaps   Rice list of `count`: unchanged elements before each changed one
      signs  one bit per change, 1 = the step is negative, least significant bit first
      skips  Rice list of `exceptions`: changes of magnitude 1 before each larger one
      sizes  Rice list of `exceptions`: magnitude - 2

count and exceptions are varints. Steps are those of ulp.py: of ordered keys, or of two's complement differences.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta import rice
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, Bits, Positions
from aurora_p2p.delta.ulp import step_between, step_from
from aurora_p2p.delta.varint import read_varint, varint
from aurora_p2p.errors import WireError

_GAP_BITS = (BLOCK_ELEMENTS - 1).bit_length()


def encode(where: Positions, old: Bits, new: Bits, *, ulp: bool) -> bytes:
    """where: int64[n], ascending places in the block; old, new: the patterns there, different in each, n > 0."""
    gaps = np.diff(where, prepend=-1).astype(np.uint64) - np.uint64(1)
    negative, magnitude = step_between(old, new, ulp=ulp)
    larger = np.flatnonzero(magnitude != 1)
    skips = np.diff(larger, prepend=-1).astype(np.uint64) - np.uint64(1)
    parts = (
        varint(old.size),
        rice.encode(gaps, _GAP_BITS),
        np.packbits(negative, bitorder="little").tobytes(),
        varint(larger.size),
        rice.encode(skips, _GAP_BITS),
        rice.encode(magnitude[larger] - np.uint64(2), old.itemsize * 8),
    )
    return b"".join(parts)


def decode(data: bytes, base: Bits, *, ulp: bool) -> tuple[Positions, Bits, Bits]:
    """(places in the block, patterns before, patterns after). Raises WireError. base: the block's elements."""
    width = base.itemsize * 8
    count, at = _count(data, 0, base.size)
    gaps, at = rice.decode(data, at, count, _GAP_BITS)
    signs_end = at + (count + 7) // 8
    exceptions, after_count = _count(data, signs_end, count)
    signs = np.frombuffer(data[at:signs_end], np.uint8)
    negative: npt.NDArray[np.bool_] = np.unpackbits(signs, count=count, bitorder="little").astype(np.bool_)
    skips, at = rice.decode(data, after_count, exceptions, _GAP_BITS)
    sizes, at = rice.decode(data, at, exceptions, width)
    if at != len(data):
        raise WireError("a block has bytes after its end")
    if exceptions and int(sizes.max()) > 2 ** (width - 1) - 2:
        raise WireError(f"a block has a step wider than its {width} bits")
    magnitude = np.ones(count, np.uint64)
    magnitude[_places(skips, count)] = sizes + np.uint64(2)
    where = _places(gaps, base.size)
    old = base[where]
    return where, old, step_from(old, negative, magnitude, ulp=ulp)


def _count(data: bytes, at: int, limit: int) -> tuple[int, int]:
    parsed = read_varint(data, at)
    if parsed is None or parsed[0] > limit:
        raise WireError(f"a block counts more than its {limit} elements, or is cut short")
    return parsed


def _places(gaps: rice.Values, limit: int) -> Positions:
    """Indices from the gaps before them; a gap is below 2**24, so sums of a block's gaps stay far below 2**63."""
    places = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if places.size and places[-1] >= limit:
        raise WireError(f"a block changes an element past its {limit}")
    return places
