"""The state digest: four sums that name the bits of a whole checkpoint, kept current from the changes alone.

All arithmetic is modulo 2**64. For element `index` (from 0, row-major) of a tensor, with its bit pattern zero-extended
to 64 bits and `seed` = tensor_id(spec):

    x  = (seed + (index + 1) * 0x9E3779B97F4A7C15) XOR bits
    x  = (x XOR x >> 30) * 0xBF58476D1CE4E5B9
    x  = (x XOR x >> 27) * 0x94D049BB133111EB
    x  = x XOR x >> 31                                    (splitmix64's finaliser, Steele et al. 2014)
    y  = x * M[lane];   term[lane] = y XOR y >> 32
    M  = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63   (xxHash's 64-bit primes)

A lane is the sum of its terms over all elements of all tensors; the digest is the four lanes as little-endian uint64s.
An empty checkpoint is 32 zero bytes. Tied tensors count once, under the name that stores them.

Every map above is a bijection of the bits at a fixed place, so changing one element always changes all four lanes. It
finds faults; it does not stop an adversary, who can solve for sums: signatures and BLAKE3 over artifact bytes do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.jit import kernel
from aurora_p2p.delta.tensors import Bits, Positions, bits_of, tensor_id
from aurora_p2p.errors import ShapeError
from aurora_p2p.types import StateDigest, TensorSpec

EMPTY = StateDigest(bytes(32))
"""Digest of a checkpoint without elements."""

_Words = npt.NDArray[np.uint64]
_STRIDE = 2**15
"""Elements widened to uint64 at a time: 256 KiB stay in the second-level cache."""
_STEP = np.uint64(0x9E3779B97F4A7C15)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_M0, _M1 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_M2, _M3 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


def full_digest(specs: Sequence[TensorSpec], bits: Mapping[str, Bits]) -> StateDigest:
    """Digest of every element. Raises ShapeError when `bits` is not what the table says."""
    running = RunningDigest(EMPTY)
    for spec in specs:
        running.extend(spec, 0, bits_of(spec, bits))
    return running.value()


class RunningDigest:
    """A digest that follows changes. Adding terms commutes: tensors, blocks and changes may come in any order."""

    def __init__(self, start: StateDigest) -> None:
        if len(start) != 32:
            raise ShapeError(f"a state digest has 32 bytes, not {len(start)}")
        self._lanes = np.frombuffer(start, "<u8").astype(np.uint64)

    def extend(self, spec: TensorSpec, offset: int, bits: Bits) -> None:
        """Add the elements offset .. offset + bits.size - 1, which the digest must not hold yet."""
        seed = np.uint64(tensor_id(spec))
        for start in range(0, bits.size, _STRIDE):
            _add_range(self._lanes, seed, np.uint64(offset + start), bits[start : start + _STRIDE].astype(np.uint64))

    def change(self, spec: TensorSpec, positions: Positions, old: Bits, new: Bits) -> None:
        """Replace old[i] by new[i] at positions[i] of the tensor. Raises ShapeError when the lengths differ."""
        if not positions.size == old.size == new.size:
            raise ShapeError(f"{positions.size} positions, {old.size} old and {new.size} new elements")
        seed, places = np.uint64(tensor_id(spec)), positions.astype(np.uint64)
        _replace(self._lanes, seed, places, old.astype(np.uint64), new.astype(np.uint64))

    def value(self) -> StateDigest:
        return StateDigest(self._lanes.astype("<u8", copy=False).tobytes())


@kernel
def _mix(seed: np.uint64, place: np.uint64, bits: np.uint64) -> np.uint64:
    x = (seed + (place + np.uint64(1)) * _STEP) ^ bits
    x = (x ^ (x >> _30)) * _A
    x = (x ^ (x >> _27)) * _B
    return x ^ (x >> _31)


@kernel
def _term(x: np.uint64, multiplier: np.uint64) -> np.uint64:
    y = x * multiplier
    return y ^ (y >> _32)


@kernel
def _add_range(lanes: _Words, seed: np.uint64, first: np.uint64, bits: _Words) -> None:
    a, b, c, d = lanes[0], lanes[1], lanes[2], lanes[3]
    for index in range(bits.size):
        x = _mix(seed, first + np.uint64(index), bits[index])
        a += _term(x, _M0)
        b += _term(x, _M1)
        c += _term(x, _M2)
        d += _term(x, _M3)
    lanes[0], lanes[1], lanes[2], lanes[3] = a, b, c, d


@kernel
def _replace(lanes: _Words, seed: np.uint64, places: _Words, old: _Words, new: _Words) -> None:
    a, b, c, d = lanes[0], lanes[1], lanes[2], lanes[3]
    for index in range(places.size):
        x = _mix(seed, places[index], old[index])
        y = _mix(seed, places[index], new[index])
        a += _term(y, _M0) - _term(x, _M0)
        b += _term(y, _M1) - _term(x, _M1)
        c += _term(y, _M2) - _term(x, _M2)
        d += _term(y, _M3) - _term(x, _M3)
    lanes[0], lanes[1], lanes[2], lanes[3] = a, b, c, d
