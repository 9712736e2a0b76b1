"""Writing a checkpoint's files: beside, synced, then renamed; never a half-written one under its name.

    OPEN --commit--> at `target`, which must not exist          any end without commit leaves nothing behind
    OPEN --commit--> in place of the checkpoint it replaces

A folder is replaced in two steps that a crash cannot tear: all new files are synced in a folder of their own, which is
renamed to READY (from here on the new checkpoint is what counts), then each is moved over the old one, and files that
are no part of the new checkpoint are removed. A crash between leaves READY: no command reads such a folder, and
`finish` does the rest.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from aurora_p2p.artifact.tensorfiles import INDEX, READY, FileSet, Stored, data_end, stored_in
from aurora_p2p.delta.tensors import Bits
from aurora_p2p.errors import StoreError, UsageError
from aurora_p2p.local.faults import disk, reach
from aurora_p2p.local.files import disk_error, sync_folder

PARTIAL = ".partial"
OPENING = ".aurora-new"
STALE = ".stale.json"
"""In READY: names of the old checkpoint's files that the new one does not have."""
_MODE = 0o644


class TensorFilesWriter:
    """New files for a FileSet. `write` may be called from several threads. Use `with`."""

    def __init__(self, target: Path, files: FileSet, replaces: FileSet | None = None) -> None:
        """target: a folder if the set is one, else a file. replaces: what is there, if `commit` is to replace it.

        Raises UsageError when the target is in the way, StoreError when nothing can be written there.
        """
        if replaces is None and target.exists():
            raise UsageError(f"{target} exists", hint="name a new place, or use --in-place to change the base itself")
        if replaces is not None and target.is_dir() != files.folder:
            raise UsageError(f"{target} is a folder and the delta is of a file, or the reverse; it cannot be replaced")
        self._target, self._files, self._replaces = target, files, replaces
        self._beside = (
            target / OPENING if replaces is not None and files.folder else target.with_name(target.name + PARTIAL)
        )
        self._stored = stored_in(files)
        self._descriptors: list[int] = []
        try:
            self._create()
        except OSError as error:
            self._discard()
            raise disk_error(f"cannot write {error.filename or self._beside}: {error.strerror}", error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._discard()

    def write(self, name: str, offset: int, bits: Bits) -> None:
        """Elements of a tensor. Raises StoreError, DiskFullError."""
        stored: Stored = self._stored[name]
        at = stored.begin + offset * bits.itemsize
        rest = bits.astype(bits.dtype.newbyteorder("<"), copy=False).view(np.uint8).data
        try:
            disk("write", self._beside)
            while rest.nbytes:
                count = os.pwrite(self._descriptors[stored.file], rest, at)
                rest, at = rest[count:], at + count
        except OSError as error:
            raise disk_error(f"cannot write {self._beside}: {error.strerror}", error) from error

    def commit(self) -> None:
        """Make the new checkpoint the one at the target, durably. Raises StoreError."""
        try:
            disk("fsync", self._beside)
            for descriptor in self._descriptors:
                os.fsync(descriptor)
            if self._files.folder:
                self._write_others()
                sync_folder(self._beside)
            reach("files.synced")
            disk("rename", self._beside)
            if self._replaces is not None and self._files.folder:
                self._beside.rename(self._target / READY)
                sync_folder(self._target)
                reach("files.ready")
                finish(self._target)
            else:
                self._beside.rename(self._target)
                sync_folder(self._target.parent)
        except OSError as error:
            raise disk_error(f"cannot write {self._target}: {error.strerror}", error) from error

    def _create(self) -> None:
        if self._files.folder:
            if self._beside.is_dir():
                shutil.rmtree(self._beside)
            self._beside.mkdir()
        for file, end in zip(self._files.files, data_end(self._files), strict=True):
            path = self._beside / file.name if self._files.folder else self._beside
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, _MODE)
            self._descriptors.append(descriptor)
            os.pwrite(descriptor, len(file.header).to_bytes(8, "little") + file.header, 0)
            os.truncate(descriptor, end)

    def _write_others(self) -> None:
        """The index, and the list of what is to be removed."""
        if self._files.index:
            _write_synced(self._beside / INDEX, self._files.index)
        if self._replaces is not None:
            stale = _names(self._replaces) - _names(self._files)
            _write_synced(self._beside / STALE, json.dumps(sorted(stale)).encode())

    def _discard(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
        if self._beside.is_dir():
            shutil.rmtree(self._beside, ignore_errors=True)
        else:
            self._beside.unlink(missing_ok=True)


def finish(folder: Path) -> bool:
    """Move what an interrupted replacement left in READY; says whether there was any. Raises StoreError."""
    ready = folder / READY
    if not ready.is_dir():
        return False
    try:
        for name in sorted(path.name for path in ready.iterdir() if path.name != STALE):
            (ready / name).rename(folder / name)
            reach("files.moved")
        for name in json.loads((ready / STALE).read_bytes()) if (ready / STALE).exists() else ():
            (folder / Path(name).name).unlink(missing_ok=True)
        sync_folder(folder)
        shutil.rmtree(ready)
    except OSError as error:
        raise StoreError(f"cannot finish the apply in {folder}: {error.strerror}", hint="make it writable") from error
    return True


def _names(files: FileSet) -> set[str]:
    return {file.name for file in files.files} | ({INDEX} if files.index else set())


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
