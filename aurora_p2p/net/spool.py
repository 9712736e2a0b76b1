"""The folder of payload files: where incoming segments lie until the daemon has moved them into its store.

    (none) --create--> WRITING --finish--> LENT --release--> FREE --take--> WRITING
                          └-----discard---> (none)             └--too many--> (none)

A file holds exactly one payload while it is lent. Names are made here, never received, and never used again by another
process; within one, a file is written again only after the daemon has given it back. It is worth keeping: to create and
unlink a file costs as much as to write 256 KiB into one that exists (measured on ext4).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from aurora_p2p.local import faults
from aurora_p2p.local.faults import reach

KEPT_BYTES = 16 * 2**20
"""Of free files."""
FULL_BYTES = 16 * 2**20
"""Lent beyond which nothing more is read from peers: files that are written again soon are still in the CPU's cache."""


@dataclass(slots=True)
class _File:
    path: Path
    length: int = 0


class Spool:
    """Emptied when it is opened. Raises OSError when it cannot be used. Any thread may call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._prefix, self._numbers = os.urandom(4).hex(), itertools.count()
        self._lent: dict[str, _File] = {}
        self._free: list[_File] = []
        self._free_bytes = self._lent_bytes = 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left_over in folder.glob("*.payload"):
            left_over.unlink()

    @property
    def full(self) -> bool:
        """Whether the daemon should move something into its store first."""
        return self._lent_bytes >= FULL_BYTES

    def take(self) -> tuple[_File, bool]:
        """A file to write, and whether it exists."""
        with self._lock:
            if self._free:
                file = self._free.pop()
                self._free_bytes -= file.length
                return file, True
        return _File(self._folder / f"{self._prefix}-{next(self._numbers)}.payload"), False

    def lend(self, file: _File) -> None:
        """The daemon is about to be told of it."""
        with self._lock:
            self._lent[str(file.path)] = file
            self._lent_bytes += file.length

    def release(self, path: str) -> None:
        """The daemon needs it no more. Unknown names are ignored: they are another process's."""
        with self._lock:
            file = self._lent.pop(path, None)
            self._lent_bytes -= file.length if file else 0
            if file is not None and self._free_bytes + file.length <= KEPT_BYTES:
                self._free.append(file)
                self._free_bytes += file.length
                return
        if file is not None:
            with contextlib.suppress(OSError):
                file.path.unlink(missing_ok=True)


class Incoming:
    """One payload on its way to the spool. `stored` turns False when the disk refuses it."""

    def __init__(self, spool: Spool, length: int) -> None:
        self._spool, self.length, self.stored = spool, length, True
        self._file, exists = spool.take()
        self.path = self._file.path
        self._hash = blake3()
        self._descriptor = -1
        with self._or_give_up():
            faults.disk("create", self.path)
            flags = 0 if exists else os.O_CREAT | os.O_EXCL
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)
            if self._file.length > length:
                os.ftruncate(self._descriptor, length)

    def write(self, piece: memoryview) -> None:
        self._hash.update(piece)
        with self._or_give_up():
            faults.disk("write", self.path, piece, lambda part: os.write(self._descriptor, part))
            while piece and self.stored:
                piece = piece[os.write(self._descriptor, piece) :]
        reach("bulk.receiving")

    def finish(self) -> bytes:
        """Close the file, which is lent from now on if it was stored; BLAKE3 of the payload."""
        self._close()
        if self.stored:
            self._file.length = self.length
            self._spool.lend(self._file)
        return self._hash.digest()

    def discard(self) -> None:
        self.stored = False
        self._close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _or_give_up(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.discard()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
