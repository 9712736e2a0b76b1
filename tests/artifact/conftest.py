"""A publisher of small artifacts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from blake3 import blake3
from msgspec import structs

from aurora_p2p.artifact.manifest import Manifest, PageWriter
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.types import NO_BASE, RunId, Seq, StateDigest, SwarmId, Version
from aurora_p2p.wire.manifest import Header
from aurora_p2p.wire.signed import Signed, seal

SEGMENT = 256


@dataclass(frozen=True)
class Published:
    header: Signed
    pages: list[Signed]
    final: Signed
    body: bytes
    manifest: Manifest

    @property
    def artifact(self):
        return self.manifest.artifact

    def segment(self, index: int) -> bytes:
        return self.body[index * SEGMENT : (index + 1) * SEGMENT]


class Publisher:
    def __init__(self) -> None:
        self.key = Identity(bytes(range(32)))

    def header(self, version: int, *, kind="delta", seq=None, size_bound=1 << 20, base=b"", digest=b"") -> Header:
        return Header(
            format=1,
            swarm=SwarmId("1" * 52),
            run=RunId(bytes(16)),
            version=Version(version),
            seq=Seq(version if seq is None else seq),
            nonce=bytes(16),
            kind=kind,
            base_version=NO_BASE if kind == "snapshot" else Version(version - 1),
            base_manifest=base,
            base_digest=digest,
            layout=bytes(32),
            segment_bytes=SEGMENT,
            size_bound=size_bound,
            class_map=b"",
            tensors=(),
            model=None,
        )

    def publish(
        self, version: int, body: bytes = b"", *, page_size: int = 4, changes=None, reaches=None, **options
    ) -> Published:
        """changes: to the header. reaches: the digest that the final page names."""
        header = seal(self.key, structs.replace(self.header(version, **options), **(changes or {})))
        writer, manifest, pages = PageWriter(self.key, header), Manifest(header, self.key.peer), []
        body = body or bytes((version + i) % 251 for i in range(10 * SEGMENT + 17))
        for start in range(0, len(body), SEGMENT):
            writer.add(blake3(body[start : start + SEGMENT]).digest())
            if writer.segments % page_size == 0:
                pages += writer.flush()
        pages += writer.flush()
        final = writer.finish(len(body), reaches or StateDigest(blake3(body).digest()))
        for page in pages:
            manifest.add_page(page)
        manifest.add_final(final)
        return Published(header, pages, final, body, manifest)


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


@pytest.fixture
def fetch(tmp_path: Path):
    """Put chosen segments of an artifact into a store, as a download does."""
    spool = tmp_path / "spool"
    spool.mkdir()

    def fetch(store, published: Published, indices=None) -> None:
        store.create(published.header)
        for page in published.pages:
            store.save_page(published.artifact, page)
        for index in range(published.manifest.final.segments) if indices is None else indices:
            source = spool / f"{index}"
            source.write_bytes(published.segment(index))
            store.put(published.artifact, index, source)
            assert not source.exists()

    return fetch


@pytest.fixture(scope="session")
def publisher_once() -> Publisher:
    """For property tests: it has no state."""
    return Publisher()
