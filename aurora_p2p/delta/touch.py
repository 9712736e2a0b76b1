"""Read or write a few elements here and there in a large tensor: kernels that fetch ahead, because every one misses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.jit import kernel
from aurora_p2p.delta.tensors import Bits, Positions
from aurora_p2p.delta.words import load8, load16, load32, load64, prefetch, store8, store16, store32, store64

AHEAD = 24
"""Elements between asking for a cache line and using it."""

Words = npt.NDArray[np.uint64]


def equal_at(bits: Bits, positions: Positions, expected: Bits) -> bool:
    """Whether bits[positions] is `expected`. Positions are inside bits: the caller knows."""
    return bool(_equal(bits.ctypes.data, bits.itemsize, positions, expected.ctypes.data))


def write_at(bits: Bits, positions: Positions, values: Bits) -> None:
    """bits[positions] = values. Positions are inside bits: the caller knows."""
    _write(bits.ctypes.data, bits.itemsize, positions, values.ctypes.data)


@kernel
def _equal(bits: int, size: int, positions: Positions, expected: int) -> bool:
    last = positions.size - 1
    for index in range(positions.size):
        prefetch(bits + size * positions[min(index + AHEAD, last)])
        here, there = bits + size * positions[index], expected + size * index
        if size == 2:
            same = load16(here) == load16(there)
        elif size == 4:
            same = load32(here) == load32(there)
        elif size == 8:
            same = load64(here) == load64(there)
        else:
            same = load8(here) == load8(there)
        if not same:
            return False
    return True


@kernel
def _write(bits: int, size: int, positions: Positions, values: int) -> None:
    last = positions.size - 1
    for index in range(positions.size):
        prefetch(bits + size * positions[min(index + AHEAD, last)])
        here, there = bits + size * positions[index], values + size * index
        if size == 2:
            store16(here, load16(there))
        elif size == 4:
            store32(here, load32(there))
        elif size == 8:
            store64(here, load64(there))
        else:
            store8(here, load8(there))
