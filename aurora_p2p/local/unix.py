"""Unix sockets in folders of any depth. The kernel takes 107 bytes of a path (unix(7)); a longer one is reached through
its open folder, as /proc/self/fd/N/NAME. Linux only, as the daemons are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_PATH = 107
"""Bytes of sun_path, but for its closing zero."""


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """What bind() and connect() take for `path`, while the block lasts. Raises OSError without its folder."""
    if len(os.fsencode(path)) <= MAX_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
