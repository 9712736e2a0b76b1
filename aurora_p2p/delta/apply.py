"""A delta beside the weights, then into them: stage, write, undo.

    base --stage--> Staged (nothing touched) --write--> the new version --undo--> base

Stage proves the result: the digest, carried from the base's by the changes alone, must be the one the publisher signed.
Write proves the ground: the bits about to change must be the ones the delta was decoded against, so steps are never
applied twice or to another base. A failed stage or a refused write has changed nothing. Undo may also follow a write
that was interrupted half-way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from aurora_p2p.delta.block import BlockReader, Change, RawBlock
from aurora_p2p.delta.classes.map import ONE_CLASS, ClassMap
from aurora_p2p.delta.coding import decode_block
from aurora_p2p.delta.digest import RunningDigest
from aurora_p2p.delta.tensors import Bits, Coverage, bits_of
from aurora_p2p.delta.touch import equal_at, write_at
from aurora_p2p.errors import DigestMismatch, ShapeError, WireError
from aurora_p2p.types import StateDigest, TensorSpec

Decode: TypeAlias = Callable[[RawBlock, TensorSpec], Change]
"""What a block of that tensor changes. Raises WireError, ShapeError."""


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """A decoded and proven delta: 12 bytes per changed bf16 element until it is written and acknowledged."""

    changes: tuple[Change, ...]
    digest: StateDigest
    changed: int


def read_blocks(specs: Sequence[TensorSpec], chunks: Iterable[bytes]) -> Iterator[tuple[TensorSpec, RawBlock]]:
    """The blocks of a whole stream with their specs. Raises WireError, also when the stream ends inside a block."""
    reader = BlockReader()
    for chunk in chunks:
        for block in reader.feed(chunk):
            if block.tensor >= len(specs):
                raise WireError(f"a block names tensor {block.tensor} of {len(specs)}")
            yield specs[block.tensor], block
    reader.close()


def stage(
    specs: Sequence[TensorSpec],
    chunks: Iterable[bytes],
    base: Mapping[str, Bits],
    base_digest: StateDigest,
    expected: StateDigest,
    classes: ClassMap = ONE_CLASS,
) -> Staged:
    """Decode a delta's stream, cut anywhere into chunks, against `base`, whose digest is `base_digest`.

    classes: the class map of the artifact's header.

    Raises WireError for malformed bytes or two blocks over one element, DigestMismatch when the result is not
    `expected`, ShapeError when base does not fit specs. Never writes to base.
    """
    return stage_with(decoder(specs, base, classes), specs, chunks, base_digest, expected)


def decoder(specs: Sequence[TensorSpec], base: Mapping[str, Bits], classes: ClassMap) -> Decode:
    """Decodes against arrays in host memory. Raises ShapeError when base does not fit specs."""
    tensors = {spec.name: bits_of(spec, base) for spec in specs}
    return lambda block, spec: decode_block(block, spec, tensors[spec.name], classes)


def stage_with(
    decode: Decode,
    specs: Sequence[TensorSpec],
    chunks: Iterable[bytes],
    base_digest: StateDigest,
    expected: StateDigest,
) -> Staged:
    """`stage` wherever the base is: `decode` knows. Raises like it."""
    digest, coverage, changes, changed = RunningDigest(base_digest), Coverage(), [], 0
    for spec, block in read_blocks(specs, chunks):
        change = decode(block, spec)
        coverage.claim(block.tensor, block.offset, block.length)
        if change.positions.size:
            digest.change(spec, change.positions, change.old, change.new)
            changes.append(change)
            changed += change.positions.size
    if digest.value() != expected:
        raise DigestMismatch("the delta does not lead from its base to the state that its publisher signed")
    return Staged(tuple(changes), digest.value(), changed)


def write(staged: Staged, weights: Mapping[str, Bits], specs: Sequence[TensorSpec]) -> None:
    """Write in place.

    Raises DigestMismatch when a touched element is not the base's, ShapeError when `weights` does not fit specs or is
    read-only; nothing is written then.
    """
    targets = [bits_of(specs[change.tensor], weights) for change in staged.changes]
    for change, target in zip(staged.changes, targets, strict=True):
        if not target.flags.writeable:
            raise ShapeError(f"the weights of {specs[change.tensor].name!r} are read-only")
        if not equal_at(target, change.positions, change.old):
            raise DigestMismatch(f"the weights in {specs[change.tensor].name!r} are not the staged delta's base")
    for change, target in zip(staged.changes, targets, strict=True):
        write_at(target, change.positions, change.new)


def undo(staged: Staged, weights: Mapping[str, Bits], specs: Sequence[TensorSpec]) -> None:
    """Put the old bits back, after `write` or after a part of it."""
    for change in staged.changes:
        write_at(bits_of(specs[change.tensor], weights), change.positions, change.old)
