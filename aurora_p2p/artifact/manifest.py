"""The progressive manifest, on both sides.

    PageWriter   publisher: segment hashes in, signed pages and the final page out
    Manifest     receiver: header, then pages in any order, then the final page; refuses what contradicts

A segment may be served only together with its signed page, and nothing is applied before the final page verifies.
A final page that contradicts a page, or two pages that contradict each other, are proof against the publisher: they
raise ContradictionError, and the artifact is discarded. No I/O here.
"""

from __future__ import annotations

from blake3 import blake3

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.types import ArtifactId, ManifestHash, PeerId, StateDigest
from aurora_p2p.wire.codec import hash_of
from aurora_p2p.wire.limits import MAX_PAGE_HASHES, MAX_SEGMENTS
from aurora_p2p.wire.manifest import FinalPage, Header, Page
from aurora_p2p.wire.signed import Signed, open_signed, seal


class ContradictionError(WireError):
    """The publisher signed two things that cannot both be true."""


def artifact_id_of(header: Signed) -> ArtifactId:
    """BLAKE3 of the header's body."""
    return ArtifactId(hash_of(header.body))


def manifest_hash_of(final: Signed) -> ManifestHash:
    """BLAKE3 of the final page's body."""
    return ManifestHash(hash_of(final.body))


class PageWriter:
    """Signs pages as segment hashes appear, and the final page at the end."""

    def __init__(self, publish: Identity, header: Signed) -> None:
        self.artifact = artifact_id_of(header)
        self._publish = publish
        self._prev: bytes = self.artifact
        self._root = blake3()
        self._pending: list[bytes] = []
        self._first = 0

    @property
    def segments(self) -> int:
        """Segments seen so far."""
        return self._first + len(self._pending)

    @property
    def covered(self) -> int:
        """Of those, how many a signed page covers."""
        return self._first

    def add(self, segment_hash: bytes) -> None:
        """The next segment's BLAKE3. Raises ShapeError past MAX_SEGMENTS."""
        if self.segments >= MAX_SEGMENTS:
            raise ShapeError(f"an artifact has at most {MAX_SEGMENTS} segments; use larger segments")
        self._pending.append(segment_hash)
        self._root.update(segment_hash)

    def flush(self, least: int = 1) -> list[Signed]:
        """Sign what is pending, in pages of `least` (at least 1) to MAX_PAGE_HASHES hashes; fewer stay pending."""
        pages = []
        while len(self._pending) >= least:
            hashes, self._pending = self._pending[:MAX_PAGE_HASHES], self._pending[MAX_PAGE_HASHES:]
            page = seal(self._publish, Page(self.artifact, self._first, b"".join(hashes), self._prev))
            self._prev = hash_of(page.body)
            self._first += len(hashes)
            pages.append(page)
        return pages

    def finish(self, length: int, digest: StateDigest) -> Signed:
        """The final page. Raises ShapeError when pages are still unsigned."""
        if self._pending:
            raise ShapeError("flush() before finish()")
        final = FinalPage(self.artifact, self._first, length, self._prev, self._root.digest(), digest)
        return seal(self._publish, final)


class Manifest:
    """What a receiver knows of one artifact. Create it from a header that open_signed has accepted."""

    def __init__(self, header: Signed, publisher: PeerId) -> None:
        """Raises SignatureError or WireError when the header is not the publisher's."""
        self.signed_header = header
        self.publisher = publisher
        self.header = open_signed(header, Header, {publisher})
        self.artifact = artifact_id_of(header)
        self.signed_final: Signed | None = None
        self.final: FinalPage | None = None
        self._pages: dict[int, Signed] = {}
        """First segment -> signed page."""
        self._covering: dict[int, int] = {}
        """Segment -> first segment of its page."""
        self._hashes: dict[int, bytes] = {}

    @property
    def max_segments(self) -> int:
        """Most segments the header's size bound allows."""
        return min(MAX_SEGMENTS, -(-self.header.size_bound // self.header.segment_bytes))

    def add_page(self, signed: Signed) -> range:
        """Take a signed page; returns the segments it covers. Known pages are accepted again.

        Raises WireError for a page of another artifact, outside the bound, or not the publisher's;
        ContradictionError when it disagrees with what the publisher signed before.
        """
        page = open_signed(signed, Page, {self.publisher})
        if page.artifact != self.artifact:
            raise WireError("the page belongs to another artifact")
        count, rest = divmod(len(page.hashes), 32)
        covered = range(page.first, page.first + count)
        if rest or covered.stop > self.max_segments:
            raise WireError(f"a page covers segments {covered.start} to {covered.stop}, past the header's bound")
        if self.final is not None and covered.stop > self.final.segments:
            raise ContradictionError("a page reaches past the final page")
        known = self._pages.get(page.first)
        if known is not None and known.body == signed.body:
            return covered
        hashes = [page.hashes[32 * i : 32 * i + 32] for i in range(count)]
        if known is not None or any(index in self._hashes for index in covered):
            raise ContradictionError("two different signed pages cover one segment")
        self._pages[page.first] = signed
        for index, digest in zip(covered, hashes, strict=True):
            self._covering[index] = page.first
            self._hashes[index] = digest
        if self.final is not None:
            self._check_root()
        return covered

    def add_final(self, signed: Signed) -> None:
        """Take the final page. Raises like add_page."""
        final = open_signed(signed, FinalPage, {self.publisher})
        if final.artifact != self.artifact:
            raise WireError("the final page belongs to another artifact")
        if self.signed_final is not None:
            if self.signed_final.body != signed.body:
                raise ContradictionError("two different final pages are signed")
            return
        size = self.header.segment_bytes
        if final.segments > self.max_segments or -(-final.length // size) != final.segments:
            raise WireError(f"the final page claims {final.length} bytes in {final.segments} segments")
        if any(index >= final.segments for index in self._hashes):
            raise ContradictionError("a page reaches past the final page")
        self.signed_final, self.final = signed, final
        self._check_root()

    def expected(self, index: int) -> bytes | None:
        """BLAKE3 that segment `index` must have; None while no page covers it."""
        return self._hashes.get(index)

    def page_of(self, index: int) -> Signed | None:
        """The signed page covering a segment."""
        first = self._covering.get(index)
        return None if first is None else self._pages[first]

    def page_key(self, index: int) -> int | None:
        """First segment of the page covering `index`: names the page within the artifact."""
        return self._covering.get(index)

    def pages(self) -> list[Signed]:
        """All pages known, in order."""
        return [self._pages[first] for first in sorted(self._pages)]

    def length_of(self, index: int) -> int | None:
        """Exact length of a segment once the final page is known; None before that."""
        if self.final is None:
            return None
        size = self.header.segment_bytes
        return min(size, self.final.length - index * size)

    @property
    def pages_complete(self) -> bool:
        """Whether the final page is known and its pages cover every segment."""
        return self.final is not None and len(self._hashes) == self.final.segments

    def _check_root(self) -> None:
        if self.final is None or len(self._hashes) != self.final.segments:
            return
        root, prev = blake3(), bytes(self.artifact)
        for index in range(self.final.segments):
            root.update(self._hashes[index])
        for page in self.pages():
            if open_signed(page, Page, {self.publisher}).prev != prev:
                raise ContradictionError("the pages do not form one chain")
            prev = hash_of(page.body)
        if root.digest() != self.final.root or prev != self.final.last:
            raise ContradictionError("the final page contradicts the pages")
