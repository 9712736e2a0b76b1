"""Where the blocks of a stored body are: indexed once from their frames, then read one at a time.

Index memory is 40 bytes a block; a payload is read, and its CRC checked, when somebody asks for the block. Nothing is
believed: frames are bounds-checked against the file, the table and each other. Reads are pread, from any thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.block import DENSE, HASH, MAX_BLOCK_BYTES, RAW, BlockReader, RawBlock, check_block, read_head
from aurora_p2p.delta.tensors import Coverage
from aurora_p2p.delta.varint import MAX_VARINT
from aurora_p2p.errors import StoreError, WireError
from aurora_p2p.types import TensorSpec

_HEAD = 5 * MAX_VARINT
_CRC = 4
_WINDOW = 1 << 16
"""Bytes read ahead while indexing: the frames of small blocks come many to a read, a large payload is skipped."""

Index = npt.NDArray[np.int64]
"""int64[blocks, 5]: tensor, offset, end (elements), first byte, bytes; sorted by tensor and offset."""


class Body:
    """One artifact's open body. Close it."""

    def __init__(self, path: Path, specs: Sequence[TensorSpec], *, whole: bool) -> None:
        """whole: the body is a snapshot's, and must cover every element once.

        Raises WireError when it is not well formed or does not fit the table, StoreError when it cannot be read.
        """
        self.path, self._specs = path, specs
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        try:
            self.nbytes = os.fstat(self._descriptor).st_size
            self._index = self._build(whole=whole)
        except (WireError, StoreError):
            self.close()
            raise
        self._firsts = np.searchsorted(self._index[:, 0], np.arange(len(specs) + 1))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def spans(self, tensor: int) -> Index:
        """int64[n, 2]: first and last-plus-one element of each block of a tensor, ascending."""
        return self._index[self._firsts[tensor] : self._firsts[tensor + 1], 1:3]

    def blocks(self, tensor: int, start: int, end: int) -> Iterator[RawBlock]:
        """The blocks of a tensor that begin in start .. end - 1. Raises WireError for a damaged one, StoreError."""
        rows = self._index[self._firsts[tensor] : self._firsts[tensor + 1]]
        first, last = np.searchsorted(rows[:, 1], (start, end))
        for at, nbytes in rows[first:last, 3:].tolist():
            found = BlockReader().feed(self._read(at, nbytes))
            if len(found) != 1:
                raise WireError(f"{self.path} has no block at byte {at}")
            yield found[0]

    def _build(self, *, whole: bool) -> Index:
        rows, coverage = [], Coverage()
        for block, at, nbytes in self._frames():
            if block.tensor >= len(self._specs):
                raise WireError(f"a block names tensor {block.tensor} of {len(self._specs)}")
            if block.mode == HASH:
                continue
            check_block(block, self._specs[block.tensor])
            if whole and block.mode not in (RAW, DENSE):
                raise WireError("a block of a snapshot needs a base")
            coverage.claim(block.tensor, block.offset, block.length)
            rows.append((block.tensor, block.offset, block.offset + block.length, at, nbytes))
        for tensor, spec in enumerate(self._specs if whole else ()):
            if coverage.elements(tensor) != spec.elements:
                raise WireError(f"the snapshot lacks elements of {spec.name!r}")
        return np.array(sorted(rows), np.int64).reshape(-1, 5)

    def _frames(self) -> Iterator[tuple[RawBlock, int, int]]:
        """(block without payload, its first byte, its bytes) of the whole stream."""
        at, window, begin = 0, b"", 0
        while at < self.nbytes:
            if at + _HEAD > begin + len(window) and begin + len(window) < self.nbytes:
                window, begin = self._read(at, min(_WINDOW, self.nbytes - at)), at
            head = read_head(window, at - begin)
            nbytes = head.end - (at - begin) + head.size + _CRC if head else MAX_BLOCK_BYTES + 1
            if head is None or nbytes > MAX_BLOCK_BYTES or at + nbytes > self.nbytes:
                raise WireError(f"{self.path} ends inside a block")
            yield RawBlock(head.tensor, head.offset, head.length, head.mode, b""), at, nbytes
            at += nbytes

    def _read(self, at: int, size: int) -> bytes:
        parts, rest = [], size
        while rest:
            try:
                part = os.pread(self._descriptor, rest, at)
            except OSError as error:
                raise StoreError(f"cannot read {self.path}: {error.strerror}") from error
            if not part:
                raise WireError(f"{self.path} ends early")
            parts.append(part)
            at, rest = at + len(part), rest - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
