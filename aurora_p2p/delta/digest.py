"""The state digest: four sums that name the bits of a whole checkpoint, kept current from the changes alone.

All arithmetic is modulo 2**64. A tensor's elements, in row-major order and as bit patterns zero-extended to 64 bits,
are taken in rows of ROW = 4096. A 64-bit element is two of 32 bits, the low half first: else 0.0 and -0.0 could change
places unseen. With seed = tensor_id(spec), for lane 0 .. 3:

    mix(x)   x = (x XOR x >> 30) * 0xBF58476D1CE4E5B9; x = (x XOR x >> 27) * 0x94D049BB133111EB; x XOR x >> 31
             (splitmix64's finaliser, Steele et al. 2014), STEP = 0x9E3779B97F4A7C15
    key      K[lane][column] = mix((4096 * lane + column + 1) * STEP) modulo 2**32, with its lowest bit set
    weight   W[lane][row]    = mix(seed + (4 * row + lane + 1) * STEP), with its lowest bit set
    lane     sum over tensors and rows of W[lane][row] * (sum over columns of K[lane][column] * element)

The digest is the four lanes as little-endian uint64s; an empty checkpoint is 32 zero bytes. Tied tensors count once,
under the name that stores them. It is a multilinear hash (Lemire and Kaser 2014) with fixed keys: sums of products are
what CPUs and GPUs do at memory speed, and a changed element changes its lane by an odd multiple of the difference. So
one changed element always changes all four lanes, and a sum follows a delta without looking at anything else.

It finds faults; it does not stop an adversary, who can solve for sums: signatures and BLAKE3 over artifact bytes do.
Which tensors there are is the layout's matter (tensors.layout_id): elements that are 0 do not show here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.jit import kernel
from aurora_p2p.delta.tensors import Bits, Positions, bits_of, tensor_id
from aurora_p2p.errors import ShapeError
from aurora_p2p.types import StateDigest, TensorSpec

EMPTY = StateDigest(bytes(32))
"""Digest of a checkpoint without elements."""
LANES, ROW = 4, 4096

_Words = npt.NDArray[np.uint64]
_STEP = np.uint64(0x9E3779B97F4A7C15)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _30, _31 = np.uint64(27), np.uint64(30), np.uint64(31)
_SHIFT, _COLUMN = np.uint64(12), np.uint64(ROW - 1)


def _mixed(x: _Words) -> _Words:
    x = (x ^ (x >> _30)) * _A
    x = (x ^ (x >> _27)) * _B
    return x ^ (x >> _31)


def keys() -> npt.NDArray[np.uint32]:
    """K, uint32[LANES, ROW]."""
    numbers = np.arange(1, LANES * ROW + 1, dtype=np.uint64) * _STEP
    return (_mixed(numbers).astype(np.uint32) | np.uint32(1)).reshape(LANES, ROW)


def weights(seed: int, rows: npt.NDArray[np.uint64]) -> _Words:
    """W, uint64[LANES, rows.size], of these rows of the tensor with that id."""
    numbers = np.uint64(4) * rows[None, :] + np.arange(1, LANES + 1, dtype=np.uint64)[:, None]
    return _mixed(np.uint64(seed) + numbers * _STEP) | np.uint64(1)


_KEYS = keys()


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
        if bits.itemsize == 8:
            offset, bits = 2 * offset, _halves(bits)
        if bits.size:
            _extend(self._lanes, np.uint64(tensor_id(spec)), np.uint64(offset), _writable(bits), _KEYS)

    def change(self, spec: TensorSpec, positions: Positions, old: Bits, new: Bits) -> None:
        """Replace old[i] by new[i] at positions[i] of the tensor. Raises ShapeError when the lengths differ."""
        if not positions.size == old.size == new.size:
            raise ShapeError(f"{positions.size} positions, {old.size} old and {new.size} new elements")
        if new.itemsize == 8:
            positions = np.stack((2 * positions, 2 * positions + 1), axis=1).reshape(-1)
            old, new = _halves(old), _halves(new)
        grown = new.astype(np.uint64) - old.astype(np.uint64)
        _change(self._lanes, np.uint64(tensor_id(spec)), positions.astype(np.int64, copy=True), grown, _KEYS)

    def add_lanes(self, lanes: Sequence[int]) -> None:
        """Add sums that were computed elsewhere (on a GPU): four integers, taken modulo 2**64."""
        self._lanes += np.array([lane % 2**64 for lane in lanes], np.uint64)

    def value(self) -> StateDigest:
        return StateDigest(self._lanes.astype("<u8", copy=False).tobytes())


def _halves(bits: Bits) -> Bits:
    return bits.astype("<u8", copy=False).view("<u4")


def _writable(bits: Bits) -> Bits:
    """The same memory as an array that kernels take for writable (they do not write): one signature per width."""
    kind = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32}[bits.itemsize]
    view: Bits = np.ctypeslib.as_array((kind * bits.size).from_address(bits.ctypes.data))
    return view


@kernel
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> _30)) * _A
    x = (x ^ (x >> _27)) * _B
    return x ^ (x >> _31)


@kernel
def _weight(seed: np.uint64, row: np.uint64, lane: np.uint64) -> np.uint64:
    return _mix(seed + (np.uint64(4) * row + lane + np.uint64(1)) * _STEP) | np.uint64(1)


@kernel
def _extend(lanes: _Words, seed: np.uint64, first: np.uint64, bits: Bits, table: npt.NDArray[np.uint32]) -> None:
    done = 0
    while done < bits.size:
        at = first + np.uint64(done)
        row, column = at >> _SHIFT, np.int64(at & _COLUMN)
        part = bits[done : done + ROW - column]
        k0, k1, k2, k3 = table[0, column:], table[1, column:], table[2, column:], table[3, column:]
        a, b, c, d = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
        for index in range(part.size):
            element = np.uint64(part[index])
            a += element * np.uint64(k0[index])
            b += element * np.uint64(k1[index])
            c += element * np.uint64(k2[index])
            d += element * np.uint64(k3[index])
        lanes[0] += a * _weight(seed, row, np.uint64(0))
        lanes[1] += b * _weight(seed, row, np.uint64(1))
        lanes[2] += c * _weight(seed, row, np.uint64(2))
        lanes[3] += d * _weight(seed, row, np.uint64(3))
        done += part.size


@kernel
def _change(
    lanes: _Words, seed: np.uint64, places: npt.NDArray[np.int64], grown: _Words, table: npt.NDArray[np.uint32]
) -> None:
    last = np.int64(-1)
    w0, w1, w2, w3 = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    a, b, c, d = lanes[0], lanes[1], lanes[2], lanes[3]
    for index in range(places.size):
        row, column = places[index] >> 12, np.uint64(places[index]) & _COLUMN
        if row != last:
            last, number = row, np.uint64(row)
            w0, w1 = _weight(seed, number, np.uint64(0)), _weight(seed, number, np.uint64(1))
            w2, w3 = _weight(seed, number, np.uint64(2)), _weight(seed, number, np.uint64(3))
        delta = grown[index]
        a += delta * np.uint64(table[0, column]) * w0
        b += delta * np.uint64(table[1, column]) * w1
        c += delta * np.uint64(table[2, column]) * w2
        d += delta * np.uint64(table[3, column]) * w3
    lanes[0], lanes[1], lanes[2], lanes[3] = a, b, c, d
