"""A state that is another state with a delta over it, read without ever being held: layers may be stacked.

A piece is read from below and the blocks that overlap it are decoded over it: memory is one piece and one block per
layer. Blocks on the encoder's grid are decoded once; one that straddles two pieces is decoded for each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aurora_p2p.artifact.states import State, Table
from aurora_p2p.delta.block import DENSE, RAW, RawBlock
from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.coding import decode_block, whole_bits
from aurora_p2p.delta.tensors import Bits, bits_dtype
from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.types import TensorSpec
from aurora_p2p.wire.manifest import TensorEntry


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block is: the elements it covers, and its framed bytes in whatever holds them."""

    offset: int
    length: int
    mode: int
    at: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.length


Places = Mapping[int, Sequence[Place]]
"""Blocks by entry number, sorted by offset, none over another; those of a full tensor cover it."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What is laid over a state: entries, their blocks, and how to get one. `fetch` may run in several threads."""

    entries: tuple[TensorEntry, ...]
    table: Table
    places: Places
    classes: ClassMap
    fetch: Callable[[Place], RawBlock]


class Layer:
    """The state after a delta, or of a snapshot."""

    def __init__(self, below: State | None, stream: Stream) -> None:
        """below: what the delta is for, and fits (states.misfit); None for a snapshot."""
        self._below, self._stream = below, stream
        self._numbers = {entry.spec.name: number for number, entry in enumerate(stream.entries)}

    @property
    def table(self) -> Table:
        return self._stream.table

    def read(self, name: str, offset: int, length: int) -> Bits:
        spec = self.table.find(name)
        if spec is None or offset + length > spec.elements:
            raise ShapeError(f"there is no {name!r} with {offset + length} elements")
        number = self._numbers[spec.name]
        if self._stream.entries[number].op == "full":
            bits: Bits = np.empty(length, bits_dtype(spec.dtype))
        else:
            bits = self._before(spec.name, offset, length)
        for place in overlapping(self._stream.places.get(number, ()), offset, offset + length):
            self._lay(spec, place, offset, bits)
        return bits

    def _before(self, name: str, offset: int, length: int) -> Bits:
        if self._below is None:
            raise WireError(f"{name!r} needs a base, and this is a snapshot")
        return self._below.read(name, offset, length)

    def _lay(self, spec: TensorSpec, place: Place, offset: int, bits: Bits) -> None:
        """Write what one block says about the elements from `offset` on into `bits`."""
        block, own = self._stream.fetch(place), TensorSpec(spec.name, spec.dtype, (place.length,))
        start, end = max(place.offset, offset), min(place.end, offset + bits.size)
        if place.mode in (RAW, DENSE):
            whole = whole_bits(block, own)
            bits[start - offset : end - offset] = whole[start - place.offset : end - place.offset]
            return
        inside = (start, end) == (place.offset, place.end)
        before = bits[start - offset : end - offset] if inside else self._before(spec.name, place.offset, place.length)
        alone = RawBlock(block.tensor, 0, place.length, block.mode, block.payload)
        change = decode_block(alone, own, before, self._stream.classes)
        at = change.positions + (place.offset - offset)
        here = slice(None) if inside else (at >= 0) & (at < bits.size)
        bits[at[here]] = change.new[here]


def overlapping(places: Sequence[Place], start: int, end: int) -> Sequence[Place]:
    """Those of sorted, disjoint places that have an element in start .. end - 1."""
    first = bisect_right(places, start, key=lambda place: place.end)
    last = first
    while last < len(places) and places[last].offset < end:
        last += 1
    return places[first:last]
