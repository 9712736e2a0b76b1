"""One artifact being published: bytes in as they are encoded, stored and page-signed segments out.

    RESERVED (seq on disk) -> OPEN (header on disk, in the swarm) -> COMPLETE | ABORTED

Cut-through: every piece that completes a segment yields it at once, with its page signed, so that the first segments
travel while later tensors are still being scanned. Blocking calls; the host runs them in a thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from aurora_p2p.artifact.manifest import Manifest, PageWriter, manifest_hash_of
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import ShapeError
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import reach
from aurora_p2p.types import ArtifactId, ManifestHash, RunId, Seq, StateDigest, SwarmId, Version
from aurora_p2p.wire.codec import hash_of
from aurora_p2p.wire.limits import MAX_SEGMENT
from aurora_p2p.wire.manifest import Header
from aurora_p2p.wire.signed import seal
from aurora_p2p.wire.trainer import BeginPublish

FORMAT = 1
MOST_SEGMENTS = 4096
"""A large artifact gets larger segments, up to the wire's limit: more of them cost CPU and do not spread better."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest complete publication: what HEAD says, and the base of the next delta."""

    seq: Seq
    version: Version
    artifact: ArtifactId
    manifest_hash: ManifestHash
    digest: StateDigest
    kind: str


def segment_size(configured: int, size_bound: int) -> int:
    """Bytes per segment: as configured; doubled while the artifact could have more than MOST_SEGMENTS."""
    size = configured
    while size_bound > size * MOST_SEGMENTS and size < MAX_SEGMENT:
        size = min(2 * size, MAX_SEGMENT)
    return size


def make_header(begin: BeginPublish, swarm: SwarmId, run: RunId, seq: Seq, base: Newest | None, segment: int) -> Header:
    """The header of a publication. base: what a delta applies to, None for a snapshot."""
    return Header(
        format=FORMAT,
        swarm=swarm,
        run=run,
        version=begin.version,
        seq=seq,
        nonce=os.urandom(16),
        kind=begin.kind,
        base_version=begin.base_version,
        base_manifest=base.manifest_hash if base else b"",
        base_digest=base.digest if base else b"",
        layout=begin.layout,
        segment_bytes=segment_size(segment, begin.size_bound),
        size_bound=begin.size_bound,
        class_map=begin.class_map,
        tensors=begin.tensors,
        model=begin.model,
    )


class Publication:
    """The publisher's side of one artifact. `manifest` is shared with the exchange machine."""

    def __init__(self, header: Header, publish: Identity, store: ArtifactStore) -> None:
        """Reserve disk and write the header. Raises StoreError."""
        signed = seal(publish, header)
        self.manifest = Manifest(signed, publish.peer)
        self.artifact = self.manifest.artifact
        self.length = 0
        self.opened = boottime()
        self._writer = PageWriter(publish, signed)
        self._store, self._rest = store, bytearray()
        store.create(signed)

    def add(self, piece: bytes) -> range:
        """Take the next bytes of the body; returns the indices of the segments they completed.

        Raises ShapeError when the body outgrows the header's bound, StoreError.
        """
        if self.length + len(piece) > self.manifest.header.size_bound:
            raise ShapeError(f"the artifact outgrows its bound of {self.manifest.header.size_bound} bytes")
        self.length += len(piece)
        self._rest += piece
        size = self.manifest.header.segment_bytes
        first = self._writer.segments
        whole = len(self._rest) - len(self._rest) % size
        for start in range(0, whole, size):
            self._segment(bytes(self._rest[start : start + size]))
        del self._rest[:whole]
        self._flush()
        return range(first, self._writer.segments)

    def finish(self, digest: StateDigest, *, now: float) -> range:
        """The last, shorter segment and the final page, durably; returns the indices of new segments."""
        first = self._writer.segments
        if self._rest:
            self._segment(bytes(self._rest))
            self._flush()
        final = self._writer.finish(self.length, digest)
        self.manifest.add_final(final)
        reach("final.signed")
        self._store.save_final(self.artifact, final)
        reach("final.written")
        self._store.finish(self.artifact, now=now)
        return range(first, self._writer.segments)

    def _segment(self, segment: bytes) -> None:
        self._store.append(self.artifact, segment)
        self._writer.add(hash_of(segment))

    def _flush(self) -> None:
        for page in self._writer.flush():
            self.manifest.add_page(page)
            self._store.save_page(self.artifact, page)


def newest_of(manifest: Manifest) -> Newest | None:
    """What a restored, complete artifact says; None while it has no final page."""
    if manifest.final is None or manifest.signed_final is None:
        return None
    header = manifest.header
    return Newest(
        header.seq,
        header.version,
        manifest.artifact,
        manifest_hash_of(manifest.signed_final),
        manifest.final.digest,
        header.kind,
    )
