"""One artifact out of a chain of stored ones: a direct delta over several versions, or a snapshot of the last.

    chain     a snapshot, then deltas, each on the state before          (never a checkpoint in memory)
    Squash    what turns state a of the chain into its last state: the bytes that encode_delta makes of both
    Snapshot  the last state whole: the bytes that encode_snapshot makes of it

Work goes span by span. A span is the smallest piece of a tensor that no block of any artifact, and no block of the
result, reaches across: one block where all were cut on the encoder's grid, the whole tensor at worst. Memory is, for
each thread, two spans (1 MiB each of bf16 on the grid; the largest tensor at worst) with a block's scratch, and 40
bytes for each block of the chain.

Every digest on the way is proven against what was signed: that of the base from all of its elements, so that a rotten
body is noticed even where no delta touches it; that of the result from the base's and the changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from aurora_p2p.artifact.bodies import Body
from aurora_p2p.artifact.parallel import in_order
from aurora_p2p.delta.block import RawBlock
from aurora_p2p.delta.classes.map import ONE_CLASS, ClassMap, learn
from aurora_p2p.delta.coding import decode_block, encode_block, encode_whole, whole_bits
from aurora_p2p.delta.digest import EMPTY, RunningDigest
from aurora_p2p.delta.hashes import TensorHash, hash_block
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, Bits, bits_dtype, blocks, layout_id
from aurora_p2p.errors import CheckpointError, DigestMismatch
from aurora_p2p.types import StateDigest, TensorSpec
from aurora_p2p.wire.fold import Source

SAMPLES = 64
"""Spans that are decoded to learn a class map, evenly spread over the checkpoint."""
SAMPLE_ELEMENTS = 1 << 14
"""Elements looked at in each: a million in all."""
FRAMING_BYTES = 64
"""Of a block and its tensor's hash block, beyond what they carry."""
SQUASH_SLACK = 1.25
"""A squash is smaller than its chain, but for class maps that suit each delta better than all of them together."""


@dataclass(frozen=True, slots=True)
class Span:
    """Elements start .. end - 1 of a tensor; last: they are its last."""

    tensor: int
    start: int
    end: int
    last: bool


class Chain:
    """A chain of stored artifacts, open. Close it, or use `with`."""

    def __init__(self, sources: Sequence[Source]) -> None:
        """Raises CheckpointError when they do not follow one another, WireError or StoreError for a bad body."""
        first = sources[0].header
        self.specs = tuple(entry.spec for entry in first.tensors if entry.op == "full")
        aliases = {entry.spec.name: entry.alias_of for entry in first.tensors if entry.op == "alias"}
        self.sources, self.layout = sources, layout_id(self.specs, aliases)
        self._require_chain()
        self.bodies: list[Body] = []
        self.classes = [ClassMap(source.header.class_map) for source in sources]
        try:
            for number, source in enumerate(sources):
                self.bodies.append(Body(Path(source.body), self.specs, whole=number == 0))
        except BaseException:
            self.close()
            raise

    def _require_chain(self) -> None:
        if self.sources[0].header.kind != "snapshot":
            raise CheckpointError("a chain begins with a snapshot")
        for before, after in zip(self.sources, self.sources[1:], strict=False):
            header = after.header
            if header.kind != "delta" or header.base_digest != before.digest:
                raise CheckpointError(f"version {header.version} does not follow version {before.header.version}")
        for source in self.sources:
            if source.header.layout != self.layout or (source.header.kind == "delta" and source.header.tensors):
                raise CheckpointError(f"version {source.header.version} has another tensor table")

    def close(self) -> None:
        for body in self.bodies:
            body.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def spans(self) -> Iterator[Span]:
        """All of every tensor, in order; one empty span of a tensor without elements."""
        for tensor, spec in enumerate(self.specs):
            ends = self._cuts(tensor, spec.elements)
            for start, end in zip([0, *ends], ends, strict=False):
                yield Span(tensor, start, end, end == spec.elements)
            if not ends:
                yield Span(tensor, 0, 0, last=True)

    def _cuts(self, tensor: int, elements: int) -> list[int]:
        """Where spans end: ends of the result's blocks that no block reaches across."""
        grid = np.array([offset + length for offset, length in blocks(elements)], np.int64)
        whole = np.ones(grid.size, np.bool_)
        for body in self.bodies:
            found = body.spans(tensor)
            if found.size:
                inside = np.searchsorted(found[:, 0], grid) - 1  # the last block that begins before the cut
                whole &= (inside < 0) | (found[np.maximum(inside, 0), 1] <= grid)
        cuts: list[int] = grid[whole].tolist()
        return cuts

    def read(self, span: Span, upto: int) -> Bits:
        """A span of the state after the first `upto` artifacts. Raises WireError, StoreError."""
        spec = self.specs[span.tensor]
        bits: Bits = np.empty(span.end - span.start, bits_dtype(spec.dtype))
        for block in self.bodies[0].blocks(span.tensor, span.start, span.end):
            at = block.offset - span.start
            bits[at : at + block.length] = whole_bits(block, spec)
        self.advance(bits, span, 1, upto)
        return bits

    def advance(self, bits: Bits, span: Span, first: int, upto: int) -> None:
        """Take a span from the state after `first` artifacts to that after `upto`, in place. Raises like `read`."""
        spec = self.specs[span.tensor]
        for number in range(first, upto):
            for block in self.bodies[number].blocks(span.tensor, span.start, span.end):
                at = block.offset - span.start
                before = bits[at : at + block.length]
                own = TensorSpec(spec.name, spec.dtype, (block.length,))
                alone = RawBlock(block.tensor, 0, block.length, block.mode, block.payload)
                change = decode_block(alone, own, before, self.classes[number])
                before[change.positions] = change.new


class Squash:
    """An iterator of pieces of the stream. `digest`, `changed` and `elements` are complete when it is exhausted."""

    def __init__(self, chain: Chain, base: int, *, classes: ClassMap | None = None, threads: int = 1) -> None:
        """base: how many of the chain's artifacts make the state that the result starts from: at least one, not all.

        classes: for the result; None learns them from a sample. Raises CheckpointError, and what reading raises.
        """
        if not 1 <= base < len(chain.sources):
            raise CheckpointError(f"a squash of {len(chain.sources)} artifacts cannot start after {base} of them")
        self._chain, self._base, self._threads = chain, base, threads
        self.classes = learned(chain, base) if classes is None else classes
        self.digest, self.changed, self.elements = EMPTY, 0, 0
        stretch = sum(body.nbytes for body in chain.bodies[base:])
        self.size_bound = min(snapshot_bound(chain.specs), int(SQUASH_SLACK * stretch) + _framing(chain.specs))

    def __iter__(self) -> Iterator[bytes]:
        """Raises DigestMismatch when a state is not what was signed, WireError, StoreError."""
        before, after = RunningDigest(EMPTY), RunningDigest(EMPTY)
        for span, done in in_order(self._encode, self._chain.spans(), self._threads):
            before.add_lanes(lanes_of(done.before))
            after.add_lanes(lanes_of(done.after))
            self.changed += done.changed
            self.elements += span.end - span.start
            yield from done.pieces
        self.digest = after.value()
        _prove(self._chain.sources[self._base - 1], before.value())
        _prove(self._chain.sources[-1], self.digest)

    def _encode(self, span: Span) -> _Done:
        chain = self._chain
        spec, pieces, changed = chain.specs[span.tensor], [], 0
        base = chain.read(span, self._base)
        new = base.copy()
        chain.advance(new, span, self._base, len(chain.sources))
        before = RunningDigest(EMPTY)
        before.extend(spec, span.start, base)
        after = RunningDigest(before.value())
        for at in range(0, base.size, BLOCK_ELEMENTS):
            part = slice(at, at + BLOCK_ELEMENTS)
            block, change = encode_block(span.tensor, span.start + at, base[part], new[part], self.classes)
            after.change(spec, change.positions, change.old, change.new)
            changed += change.positions.size
            pieces += [block] if block else []
        return _Done(tuple(pieces), before.value(), after.value(), changed)


@dataclass(frozen=True, slots=True)
class _Done:
    pieces: tuple[bytes, ...]
    before: StateDigest
    after: StateDigest
    changed: int


class Snapshot:
    """An iterator of pieces of the stream. `digest`, `changed` and `elements` are complete when it is exhausted."""

    def __init__(self, chain: Chain, *, threads: int = 1) -> None:
        self._chain, self._threads = chain, threads
        self.classes, self.size_bound = ONE_CLASS, snapshot_bound(chain.specs)
        self.digest, self.changed, self.elements = EMPTY, 0, 0

    def __iter__(self) -> Iterator[bytes]:
        """Raises like Squash."""
        total, hasher = RunningDigest(EMPTY), TensorHash()
        for span, bits in in_order(self._read, self._chain.spans(), self._threads):
            total.extend(self._chain.specs[span.tensor], span.start, bits)
            hasher.extend(bits)
            self.elements += bits.size
            for at in range(0, bits.size, BLOCK_ELEMENTS):
                yield encode_whole(span.tensor, span.start + at, bits[at : at + BLOCK_ELEMENTS])
            if span.last:
                yield hash_block(span.tensor, hasher.value())
                hasher = TensorHash()
        self.digest, self.changed = total.value(), self.elements
        _prove(self._chain.sources[-1], self.digest)

    def _read(self, span: Span) -> Bits:
        return self._chain.read(span, len(self._chain.sources))


def learned(chain: Chain, base: int) -> ClassMap:
    """The class map that suits a sample of what changed since the state after `base` artifacts."""
    halves = [span for span in chain.spans() if bits_dtype(chain.specs[span.tensor].dtype).itemsize == 2]
    stride = max(1, len(halves) // SAMPLES)
    pairs = []
    for span in halves[::stride]:
        old = chain.read(span, base)
        new = old.copy()
        chain.advance(new, span, base, len(chain.sources))
        step = max(1, old.size // SAMPLE_ELEMENTS)
        pairs.append((old[::step].copy(), new[::step].copy()))
    return learn(pairs)


def snapshot_bound(specs: Sequence[TensorSpec]) -> int:
    """1.1x the checkpoint and its framing, bytes: no encoding of these tensors is larger."""
    return sum(spec.nbytes for spec in specs) * 11 // 10 + _framing(specs)


def lanes_of(digest: StateDigest) -> list[int]:
    """The four sums of a digest."""
    lanes: list[int] = np.frombuffer(digest, "<u8").tolist()
    return lanes


def _framing(specs: Sequence[TensorSpec]) -> int:
    return FRAMING_BYTES * (len(specs) + 1)


def _prove(source: Source, found: StateDigest) -> None:
    if found != source.digest:
        raise DigestMismatch(
            f"what is stored of version {source.header.version} is not the state that its publisher signed",
            hint="its artifacts are damaged on this disk: they are fetched again, or replaced by a newer snapshot",
        )
