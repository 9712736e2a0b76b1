"""One artifact on its way into a store: bytes in as they are encoded, stored and page-signed segments out.

    OPEN (header on disk) -> COMPLETE

Cut-through: every piece that completes a segment yields it at once, with its page signed, so that the first segments
travel while later tensors are still being scanned. Blocking calls; a daemon runs them in a thread. The key is the
publish key where the artifact is a publication, and a node's own where it is folded for itself (never sent to anyone).
"""

from __future__ import annotations

from aurora_p2p.artifact.manifest import Manifest, PageWriter
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import ShapeError
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import reach
from aurora_p2p.types import StateDigest
from aurora_p2p.wire.codec import hash_of
from aurora_p2p.wire.limits import MAX_SEGMENT
from aurora_p2p.wire.manifest import Header
from aurora_p2p.wire.signed import seal

MOST_SEGMENTS = 4096
"""A large artifact gets larger segments, up to the wire's limit: more of them cost CPU and do not spread better."""


def segment_size(configured: int, size_bound: int) -> int:
    """Bytes per segment: as configured; doubled while the artifact could have more than MOST_SEGMENTS."""
    size = configured
    while size_bound > size * MOST_SEGMENTS and size < MAX_SEGMENT:
        size = min(2 * size, MAX_SEGMENT)
    return size


class ArtifactWriter:
    """The signer's side of one artifact. `manifest` is shared with the exchange machine."""

    def __init__(self, header: Header, key: Identity, store: ArtifactStore, *, page_segments: int = 1) -> None:
        """Reserve disk and write the header. Raises StoreError.

        page_segments: fewest segments of a page but the last. With 1 each segment leaves as soon as it is there; with
        MAX_PAGE_HASHES pages are as few as can be, for whoever makes the body himself (rebuilding.py).
        """
        signed = seal(key, header)
        self.manifest = Manifest(signed, key.peer)
        self.artifact = self.manifest.artifact
        self.length = 0
        self.opened = boottime()
        self._writer, self._page_segments = PageWriter(key, signed), page_segments
        self._store, self._rest = store, bytearray()
        store.create(signed)

    def add(self, piece: bytes) -> range:
        """Take the next bytes of the body; returns the indices of segments that are now stored and page-signed.

        Raises ShapeError when the body outgrows the header's bound, StoreError.
        """
        if self.length + len(piece) > self.manifest.header.size_bound:
            raise ShapeError(f"the artifact outgrows its bound of {self.manifest.header.size_bound} bytes")
        self.length += len(piece)
        self._rest += piece
        size = self.manifest.header.segment_bytes
        first = self._writer.covered
        whole = len(self._rest) - len(self._rest) % size
        for start in range(0, whole, size):
            self._segment(bytes(self._rest[start : start + size]))
        del self._rest[:whole]
        self._flush(self._page_segments)
        return range(first, self._writer.covered)

    def finish(self, digest: StateDigest, *, now: float) -> range:
        """The last, shorter segment and the final page, durably; returns the indices of new segments."""
        first = self._writer.covered
        if self._rest:
            self._segment(bytes(self._rest))
        self._flush(1)
        final = self._writer.finish(self.length, digest)
        self.manifest.add_final(final)
        reach("final.signed")
        self._store.save_final(self.artifact, final)
        reach("final.written")
        self._store.finish(self.artifact, now=now)
        return range(first, self._writer.covered)

    def _segment(self, segment: bytes) -> None:
        self._store.append(self.artifact, segment)
        self._writer.add(hash_of(segment))

    def _flush(self, least: int) -> None:
        for page in self._writer.flush(least):
            self.manifest.add_page(page)
            self._store.save_page(self.artifact, page)
