"""One artifact's folder, read back: what of it is sound. store.py says what lies where."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.errors import WireError
from aurora_p2p.local import faults
from aurora_p2p.local.files import disk_error
from aurora_p2p.wire.codec import decode
from aurora_p2p.wire.signed import Signed


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest as far as its files are sound; None when the header is not. Drops a torn tail of pages."""
    try:
        header = decode((folder / "header").read_bytes(), Signed)
        manifest = Manifest(header, header.signer)
    except (FileNotFoundError, WireError):
        return None
    if manifest.artifact.hex() != folder.name:
        return None
    _read_pages(manifest, folder / "pages")
    with contextlib.suppress(FileNotFoundError, WireError):
        manifest.add_final(decode((folder / "final").read_bytes(), Signed))
    return manifest


def _read_pages(manifest: Manifest, path: Path) -> None:
    """Add the log's pages; cut it where it is torn, so that the next append is readable."""
    log = path.read_bytes() if path.exists() else b""
    start = 0
    while start + 4 <= len(log):
        end = start + 4 + int.from_bytes(log[start : start + 4], "big")
        if end > len(log):
            break
        try:
            manifest.add_page(decode(log[start + 4 : end], Signed))
        except WireError:
            break
        start = end
    if start < len(log):
        os.truncate(path, start)


def append_whole(path: Path, record: bytes) -> None:
    """Append to a log, all or nothing: a torn record would hide every later one from the next start. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        before, rest = os.fstat(descriptor).st_size, memoryview(record)
        try:
            faults.disk("write", path, record, lambda part: os.write(descriptor, part))
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def hash_body(manifest: Manifest, path: Path) -> set[int]:
    """The segments of a body that hash to what their page says. Before the final page a last segment may be short."""
    good = set()
    size = manifest.header.segment_bytes
    with path.open("rb") as body:
        length = os.fstat(body.fileno()).st_size
        for index in range(-(-length // size)):
            expected = manifest.expected(index)
            if expected is None:
                continue
            body.seek(index * size)
            segment = body.read(manifest.length_of(index) or size)
            if blake3(segment).digest() == expected:
                good.add(index)
    return good


@contextlib.contextmanager
def disk(path: Path) -> Iterator[None]:
    """OSError -> StoreError or DiskFullError naming what could not be written or read."""
    try:
        yield
    except OSError as error:
        message = f"cannot use {path}: {error.strerror or error}"
        raise disk_error(message, error, "check disk space and rights") from error
