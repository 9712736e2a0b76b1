"""One state into the next, streamed: the blocks between any two states, whatever changed in the table.

    for piece in encoder: write it        then `facts` holds what was learned on the way

Nothing is held but the blocks in work: both states are read piece by piece, on several threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aurora_p2p.artifact.parallel import in_order
from aurora_p2p.artifact.states import State, compare
from aurora_p2p.delta.classes.map import ONE_CLASS, ClassMap, learn
from aurora_p2p.delta.coding import encode_block, encode_whole
from aurora_p2p.delta.digest import EMPTY, RunningDigest
from aurora_p2p.delta.hashes import TensorHash, hash_block
from aurora_p2p.delta.tensors import Bits, blocks
from aurora_p2p.types import DTYPES, StateDigest, TensorSpec
from aurora_p2p.wire.manifest import TensorEntry

SAMPLES, SAMPLE_ELEMENTS = 256, 8192
"""Pieces read to learn the class map, evenly spread, and their elements."""


@dataclass(slots=True)
class Facts:
    """What is known once both states have been read.

    bases: state digest of each entry's tensor in the base, as the entry describes it; zeros where none is needed.
    hashes: BLAKE3 by name of each stored tensor of the new state. elements: scanned or sent; changed: of those, sent.
    """

    base_digest: StateDigest
    digest: StateDigest
    bases: list[StateDigest]
    hashes: dict[str, bytes]
    changed: int = 0
    elements: int = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """Elements to be worked on. number: of the entry; -1 for a tensor that only leaves (spec: as the base has it)."""

    number: int
    spec: TensorSpec
    op: str
    offset: int
    length: int
    last: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Done:
    block: bytes
    base: StateDigest
    digest: StateDigest
    changed: int
    new: Bits


class Transition:
    """An iterator of (bytes of the stream, elements worked on so far)."""

    def __init__(self, base: State | None, new: State, threads: int = 1) -> None:
        self._base, self._new, self._threads = base, new, threads
        self.entries: tuple[TensorEntry, ...] = compare(base.table if base else None, new.table)
        self.classes = ONE_CLASS if base is None else learn_classes(base, new, self.entries)
        self.facts = Facts(EMPTY, EMPTY, [EMPTY] * len(self.entries), {})

    @property
    def work(self) -> int:
        """Elements that will be worked on."""
        return sum(piece.length for piece in self._pieces())

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        facts, totals = self.facts, (RunningDigest(EMPTY), RunningDigest(EMPTY))
        done, hasher = 0, TensorHash()
        stored = self._base.table.stored if self._base else {}
        for piece, result in in_order(self._encode, self._pieces(), self._threads):
            done += piece.length
            if piece.op == "deleted" or piece.spec.name in stored:
                totals[0].add_lanes(_lanes(result.base))
            totals[1].add_lanes(_lanes(result.digest))
            if piece.number >= 0:
                facts.bases[piece.number] = _sum(facts.bases[piece.number], result.base)
                facts.changed += result.changed
                facts.elements += piece.length
                hasher.extend(result.new)
            if piece.number >= 0 and piece.last:
                facts.hashes[piece.spec.name] = hasher.value()
                yield result.block + hash_block(piece.number, hasher.value()), done
                hasher = TensorHash()
            elif result.block:
                yield result.block, done
        facts.base_digest, facts.digest = totals[0].value(), totals[1].value()

    def _pieces(self) -> Iterator[_Piece]:
        """Of each stored tensor in table order; then of what the base has and the new state has not."""
        kept = set()
        for number, entry in enumerate(self.entries):
            if entry.op in ("delta", "full"):
                kept |= {entry.spec.name} if entry.op == "delta" else set()
                yield from _cut(number, entry.spec, entry.op)
        for spec in self._base.table.specs if self._base else ():
            if spec.name not in kept:
                yield from _cut(-1, spec, "deleted")

    def _encode(self, piece: _Piece) -> _Done:
        name, offset, length = piece.spec.name, piece.offset, piece.length
        before, after = RunningDigest(EMPTY), RunningDigest(EMPTY)
        if piece.op == "full":
            new = self._new.read(name, offset, length)
            after.extend(piece.spec, offset, new)
            return _Done(encode_whole(piece.number, offset, new) if length else b"", EMPTY, after.value(), length, new)
        assert self._base is not None  # noqa: S101  # without a base every entry is full or an alias
        base = self._base.read(name, offset, length)
        before.extend(piece.spec, offset, base)
        if piece.op == "deleted":
            return _Done(b"", before.value(), EMPTY, 0, base)
        new = self._new.read(name, offset, length)
        block, change = encode_block(piece.number, offset, base, new, self.classes)
        after.add_lanes(_lanes(before.value()))
        after.change(piece.spec, change.positions, change.old, change.new)
        return _Done(block, before.value(), after.value(), change.positions.size, new)


def learn_classes(base: State, new: State, entries: Sequence[TensorEntry]) -> ClassMap:
    """The class map that suits a sample of what changed in the 16-bit tensors."""
    halves = [entry.spec for entry in entries if entry.op == "delta" and DTYPES[entry.spec.dtype] == 2]
    total = sum(spec.elements for spec in halves)
    stride = max(total // SAMPLES, SAMPLE_ELEMENTS)
    pairs, first = [], 0
    for spec in halves:
        for at in range(-first % stride, spec.elements, stride):
            length = min(SAMPLE_ELEMENTS, spec.elements - at)
            pairs.append((base.read(spec.name, at, length), new.read(spec.name, at, length)))
        first += spec.elements
    return learn(pairs)


def _cut(number: int, spec: TensorSpec, op: str) -> Iterator[_Piece]:
    spans = list(blocks(spec.elements)) or [(0, 0)]
    for offset, length in spans:
        yield _Piece(number, spec, op, offset, length, offset + length == spec.elements)


def _lanes(digest: StateDigest) -> list[int]:
    lanes: list[int] = np.frombuffer(digest, "<u8").tolist()
    return lanes


def _sum(one: StateDigest, other: StateDigest) -> StateDigest:
    total = RunningDigest(one)
    total.add_lanes(_lanes(other))
    return total.value()
