"""A delta file: one delta or snapshot between checkpoints of one's own, in a single file (docs/delta-files.md).

    file  := MAGIC size head block... foot size seal
    size  := uint32 LE: bytes of the head, or of the foot
    seal  := BLAKE3 of everything before it

Head and foot are MessagePack; the head is known before anything is scanned, the foot after. Blocks are those of a
swarm's artifacts (docs/protocol/02-artifacts.md), each stored tensor followed by its hash block. The file is UNSIGNED:
the seal finds damage and says nothing about who wrote it. The reader believes nothing: every count, place and name is
checked when the file is opened, every CRC when a block is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, Self

from blake3 import blake3
from msgspec import Meta

from aurora_p2p.artifact.layers import Place, Places, Stream
from aurora_p2p.artifact.states import Table, table_after
from aurora_p2p.artifact.tensorfiles import FileSet, stored_in
from aurora_p2p.delta.block import DENSE, HASH, MAX_BLOCK_BYTES, RAW, BlockReader, RawBlock, check_block, read_head
from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.hashes import ExpectedHashes
from aurora_p2p.delta.tensors import Coverage
from aurora_p2p.errors import CheckpointError, WireError
from aurora_p2p.types import Record
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.limits import U62, Bytes32, DigestField
from aurora_p2p.wire.manifest import TensorEntry

MAGIC = b"AURORA\x00\x01"
MAX_ENTRIES = 1 << 20
MAX_PART = 1 << 28
"""Bytes of a head or a foot: the headers of the largest checkpoints are a few megabytes."""
SIZE_BYTES, SEAL_BYTES = 4, 32
_FRAME_HEAD = 48
"""Five varints of at most nine bytes."""
_READ_BYTES = 1 << 20


class DeltaHead(Record, frozen=True):
    """base_layout: empty in a snapshot. tensors: every tensor of both tables. files: what `apply` writes."""

    format: Annotated[int, Meta(ge=1, le=1)]
    kind: Literal["delta", "snapshot"]
    base_layout: Annotated[bytes, Meta(max_length=32)]
    layout: Bytes32
    class_map: Annotated[bytes, Meta(max_length=7)]
    tensors: Annotated[tuple[TensorEntry, ...], Meta(max_length=MAX_ENTRIES)]
    files: FileSet


class DeltaFoot(Record, frozen=True):
    """base_digest: empty in a snapshot. bases: 32 bytes per entry, the state digest of its tensor in the base or zeros.

    elements: those of delta and full tensors; changed: of those, the ones that travel.
    """

    base_digest: Annotated[bytes, Meta(max_length=32)]
    digest: DigestField
    bases: Annotated[bytes, Meta(max_length=32 * MAX_ENTRIES)]
    changed: U62
    elements: U62


def opening(head: DeltaHead) -> bytes:
    """The file's bytes before the first block."""
    return MAGIC + _sized(head)


def closing(foot: DeltaFoot) -> bytes:
    """Its bytes after the last block, without the seal."""
    body = encode(foot)
    return body + len(body).to_bytes(SIZE_BYTES, "little")


def _sized(head: DeltaHead) -> bytes:
    body = encode(head)
    return len(body).to_bytes(SIZE_BYTES, "little") + body


class DeltaFile:
    """An open delta file. Close it, or use `with`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Takes the descriptor over. Raises WireError when the file is not well formed."""
        self.path, self._descriptor = path, descriptor
        self.nbytes = os.fstat(descriptor).st_size
        self.head, self._begin = self._read_head()
        self.foot, self._end = self._read_foot()
        self.table = self._check_tables()
        self._hash_places: dict[int, Place] = {}
        self.places: Places = self._index()
        self.hashes = self._read_hashes()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Raises CheckpointError when there is no such file, WireError when it is not well formed."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
        try:
            return cls(path, descriptor)
        except WireError as error:
            os.close(descriptor)
            raise WireError(f"{path}: {error}", hint=error.hint) from error
        except IsADirectoryError as error:
            os.close(descriptor)
            raise CheckpointError(f"{path} is a folder, not a delta file") from error

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def stream(self) -> Stream:
        """What it lays over its base."""
        return Stream(self.head.tensors, self.table, self.places, ClassMap(self.head.class_map), self.fetch)

    @property
    def stream_bytes(self) -> int:
        return self._end - self._begin

    def base_of(self, number: int) -> bytes:
        """The state digest of an entry's tensor in the base."""
        return self.foot.bases[32 * number : 32 * number + 32]

    def fetch(self, place: Place) -> RawBlock:
        """One block, its CRC checked. Raises WireError."""
        found = BlockReader().feed(self._read(place.at, place.nbytes))
        if len(found) != 1:
            raise WireError(f"{self.path}: there is no block at byte {place.at}")
        return found[0]

    def blocks(self) -> Iterator[tuple[int, Place]]:
        """(number of its entry, place) of every block but hashes, in the order of entries."""
        for number in sorted(self.places):
            yield from ((number, place) for place in self.places[number])

    def check_seal(self) -> Iterator[int]:
        """Bytes hashed so far, as they are; ends when the seal is right. Raises WireError when it is not."""
        hasher, at, end = blake3(), 0, self.nbytes - SEAL_BYTES
        while at < end:
            piece = self._read(at, min(_READ_BYTES, end - at))
            hasher.update(piece)
            at += len(piece)
            yield at
        if hasher.digest() != self._read(end, SEAL_BYTES):
            raise WireError(f"{self.path} is damaged: its seal is wrong")

    def _read(self, at: int, size: int) -> bytes:
        parts, rest = [], size
        while rest:
            part = os.pread(self._descriptor, rest, at)
            if not part:
                raise WireError(f"{self.path} ends early")
            parts.append(part)
            at, rest = at + len(part), rest - len(part)
        return b"".join(parts)

    def _read_head(self) -> tuple[DeltaHead, int]:
        least = len(MAGIC) + 2 * SIZE_BYTES + SEAL_BYTES
        if self.nbytes < least or self._read(0, len(MAGIC)) != MAGIC:
            raise WireError("this is not a delta file", hint="`aurora-host delta encode` writes one")
        size = int.from_bytes(self._read(len(MAGIC), SIZE_BYTES), "little")
        if size > min(MAX_PART, self.nbytes - least):
            raise WireError("the head is longer than the file")
        begin = len(MAGIC) + SIZE_BYTES
        return decode(self._read(begin, size), DeltaHead, limit=MAX_PART), begin + size

    def _read_foot(self) -> tuple[DeltaFoot, int]:
        end = self.nbytes - SEAL_BYTES - SIZE_BYTES
        size = int.from_bytes(self._read(end, SIZE_BYTES), "little")
        if size > min(MAX_PART, end - self._begin):
            raise WireError("the foot is longer than the file, or the file was cut short")
        return decode(self._read(end - size, size), DeltaFoot, limit=MAX_PART), end - size

    def _check_tables(self) -> Table:
        head, foot = self.head, self.foot
        table = table_after(head.tensors)
        if table.layout != head.layout:
            raise WireError("the tensor table is not the one that the layout names")
        files = stored_in(head.files)
        if sorted(files) != table.names or any(stored.spec != table.spec_of(name) for name, stored in files.items()):
            raise WireError("the tensor table is not that of the files to be written")
        bare = head.kind == "snapshot"
        if bare and any(entry.op not in ("full", "alias") for entry in head.tensors):
            raise WireError("a snapshot's tensors are full or aliases")
        if len(head.base_layout) != (0 if bare else 32) or len(foot.base_digest) != (0 if bare else 32):
            raise WireError("a delta names its base, and a snapshot has none")
        if len(foot.bases) != 32 * len(head.tensors) or foot.changed > foot.elements:
            raise WireError("the foot does not fit the head")
        ClassMap(head.class_map)
        return table

    def _index(self) -> Places:
        """Where the blocks are, from their frames alone; checked against the table."""
        places: dict[int, list[Place]] = {}
        coverage, at = Coverage(), self._begin
        while at < self._end:
            number, place = self._frame_at(at)
            at += place.nbytes
            if place.mode == HASH:
                if number in self._hash_places:
                    raise WireError(f"the stream has two hashes of tensor {number}")
                self._hash_places[number] = place
                continue
            entry = self._entry(number)
            check_block(RawBlock(number, place.offset, place.length, place.mode, b""), entry.spec)
            if entry.op not in ("delta", "full") or (entry.op == "full" and place.mode not in (RAW, DENSE)):
                raise WireError(f"a block of {entry.spec.name!r} does not go with its operation, {entry.op}")
            coverage.claim(number, place.offset, place.length)
            places.setdefault(number, []).append(place)
        for number, entry in enumerate(self.head.tensors):
            if entry.op == "full" and coverage.elements(number) != entry.spec.elements:
                raise WireError(
                    f"{entry.spec.name!r} has {coverage.elements(number)} of {entry.spec.elements} elements"
                )
        return {number: sorted(found, key=lambda place: place.offset) for number, found in places.items()}

    def _entry(self, number: int) -> TensorEntry:
        if number >= len(self.head.tensors):
            raise WireError(f"a block names tensor {number} of {len(self.head.tensors)}")
        return self.head.tensors[number]

    def _frame_at(self, start: int) -> tuple[int, Place]:
        head = self._read(start, min(_FRAME_HEAD, self._end - start))
        block = read_head(head, 0)
        nbytes = block.end + block.size + 4 if block else MAX_BLOCK_BYTES + 1
        if block is None or nbytes > MAX_BLOCK_BYTES or start + nbytes > self._end:
            raise WireError("the block stream ends inside a block")
        return block.tensor, Place(block.offset, block.length, block.mode, start, nbytes)

    def _read_hashes(self) -> dict[str, bytes]:
        """BLAKE3 by name of each stored tensor: all of them must be there."""
        expected = ExpectedHashes()
        for place in self._hash_places.values():
            expected.take(self.fetch(place))
        found = expected.found
        stored = {number: entry for number, entry in enumerate(self.head.tensors) if entry.op in ("delta", "full")}
        if found.keys() != stored.keys():
            raise WireError("the file does not have one hash for each of its tensors")
        return {stored[number].spec.name: value for number, value in found.items()}


def check_chain(files: Sequence[DeltaFile]) -> None:
    """Raises CheckpointError when a file does not follow the one before it."""
    for before, after in pairwise(files):
        if (after.foot.base_digest, after.head.base_layout) != (before.foot.digest, before.head.layout):
            raise CheckpointError(
                f"{after.path} does not start where {before.path} ends",
                hint="give the files in the order in which they were made, without gaps",
            )
