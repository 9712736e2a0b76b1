"""A checkpoint, or what changed in it -> the block stream of an artifact, produced while it is being sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aurora_p2p.delta.classes.map import ONE_CLASS, ClassMap
from aurora_p2p.delta.coding import encode_block, encode_whole
from aurora_p2p.delta.digest import EMPTY, RunningDigest
from aurora_p2p.delta.hashes import TensorHash, hash_block
from aurora_p2p.delta.tensors import Bits, bits_of, blocks
from aurora_p2p.types import StateDigest, TensorSpec


class DeltaEncoder(Iterator[bytes]):
    """An iterator over the stream: one piece of bytes per changed block, in table order, scanned when it is asked for.

    In a snapshot each tensor's blocks are followed by its hash block.

    changed, elements: elements that travel, and that were scanned. digest: of the new checkpoint. All three are
    complete when the iterator is exhausted. The arrays must not change before that.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        base: Mapping[str, Bits] | None,
        new: Mapping[str, Bits],
        start: StateDigest,
        classes: ClassMap = ONE_CLASS,
    ) -> None:
        """base: None for a snapshot, whose `start` is digest.EMPTY. Raises ShapeError when arrays do not fit specs."""
        self._tensors = [(spec, None if base is None else bits_of(spec, base), bits_of(spec, new)) for spec in specs]
        self._digest, self._classes = RunningDigest(start), classes
        self._pieces = self._scan()
        self.changed = 0
        self.elements = 0

    @property
    def digest(self) -> StateDigest:
        return self._digest.value()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._pieces)

    def _scan(self) -> Iterator[bytes]:
        for tensor, (spec, base, new) in enumerate(self._tensors):
            whole = TensorHash()
            for offset, length in blocks(spec.elements):
                span = slice(offset, offset + length)
                encoded = self._encode(tensor, spec, offset, None if base is None else base[span], new[span])
                self.elements += length
                if base is None:
                    whole.extend(new[span])
                if encoded:
                    yield encoded
            if base is None:
                yield hash_block(tensor, whole.value())

    def _encode(self, tensor: int, spec: TensorSpec, offset: int, base: Bits | None, new: Bits) -> bytes:
        if base is None:
            self._digest.extend(spec, offset, new)
            self.changed += new.size
            return encode_whole(tensor, offset, new)
        encoded, change = encode_block(tensor, offset, base, new, self._classes)
        self._digest.change(spec, change.positions, change.old, change.new)
        self.changed += change.positions.size
        return encoded


def encode_delta(
    specs: Sequence[TensorSpec],
    base: Mapping[str, Bits],
    new: Mapping[str, Bits],
    base_digest: StateDigest,
    classes: ClassMap = ONE_CLASS,
) -> DeltaEncoder:
    """What turns `base`, whose digest is `base_digest`, into `new`. Raises ShapeError."""
    return DeltaEncoder(specs, base, new, base_digest, classes)


def encode_snapshot(specs: Sequence[TensorSpec], bits: Mapping[str, Bits]) -> DeltaEncoder:
    """A whole checkpoint as an artifact that needs no base. Raises ShapeError."""
    return DeltaEncoder(specs, None, bits, EMPTY)
