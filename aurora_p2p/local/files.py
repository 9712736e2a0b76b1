"""Durable small files: written beside, synced, renamed. A reader sees the old or the new content, never half."""

from __future__ import annotations

import os
from pathlib import Path

from aurora_p2p.errors import StoreError


def write_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` atomically and durably. Raises StoreError (disk full, read-only, ...)."""
    beside = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
