"""Durable small files: written beside, synced, renamed. A reader sees the old or the new content, never half."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from aurora_p2p.errors import DiskFullError, StoreError
from aurora_p2p.local import faults


def write_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` atomically and durably. Raises StoreError (read-only, ...) or DiskFullError."""
    beside = path.with_name(path.name + ".new")
    try:
        faults.disk("create", path)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            faults.disk("write", path, content, lambda part: os.write(descriptor, part))
            file.write(content)
            file.flush()
            faults.disk("fsync", path)
            os.fsync(file.fileno())
        faults.reach("file.synced")
        faults.disk("rename", path)
        beside.replace(path)
        faults.reach("file.renamed")
        sync_folder(path.parent)
    except OSError as error:
        raise disk_error(f"cannot write {path}: {error.strerror}", error) from error


def disk_error(message: str, error: OSError, hint: str = "") -> StoreError:
    """What a system call said about a disk, for a person; a full one, or a spent quota, is a DiskFullError."""
    kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
    return kind(message, hint=hint)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
