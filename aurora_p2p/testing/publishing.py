"""What the simulated host publishes: headers, signed pages and segments of random bytes, or tokens that stand for them.

A token is the 32 bytes that a segment's digest would be, so that right and wrong stay what they are while nothing is
hashed and no memory is filled.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from blake3 import blake3

from aurora_p2p.artifact.manifest import Manifest, PageWriter
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.types import NO_BASE, ArtifactId, RunId, Seq, StateDigest, SwarmId, Version
from aurora_p2p.wire.manifest import Header
from aurora_p2p.wire.signed import seal


def header_of(swarm: SwarmId, nonce: bytes, *, size: int, segment_bytes: int, seq: int) -> Header:
    """A snapshot's header that bounds four times the size, as a publisher does that does not know it yet."""
    return Header(
        format=1,
        swarm=swarm,
        run=RunId(bytes(16)),
        version=Version(seq),
        seq=Seq(seq),
        nonce=nonce,
        kind="snapshot",
        base_version=NO_BASE,
        base_manifest=b"",
        base_digest=b"",
        layout=bytes(32),
        segment_bytes=segment_bytes,
        size_bound=4 * max(size, segment_bytes),
        class_map=b"",
        tensors=(),
        model=None,
    )


@dataclass(frozen=True, slots=True)
class Segment:
    payload: bytes
    digest: bytes
    length: int


def segments_of(rng: Random, size: int, segment_bytes: int, *, exact: bool) -> list[Segment]:
    """The artifact's segments; with `exact` false each payload is its own digest."""
    lengths = [min(segment_bytes, size - start) for start in range(0, size, segment_bytes)]
    if exact:
        bodies = [rng.randbytes(length) for length in lengths]
        return [Segment(body, blake3(body).digest(), len(body)) for body in bodies]
    tokens = [rng.randbytes(32) for _ in lengths]
    return [Segment(token, token, length) for token, length in zip(tokens, lengths, strict=True)]


class Publication:
    """One artifact on its way out of the encoder."""

    def __init__(self, publisher: Identity, header: Header, segments: list[Segment]) -> None:
        signed = seal(publisher, header)
        self.manifest = Manifest(signed, publisher.peer)
        self.segments = segments
        self._pages = PageWriter(publisher, signed)

    @property
    def artifact(self) -> ArtifactId:
        return self.manifest.artifact

    def produce(self, batch: range) -> int | None:
        """The next segments are encoded: their page is signed. Returns the length of the last one of all."""
        for index in batch:
            self._pages.add(self.segments[index].digest)
        for page in self._pages.flush():
            self.manifest.add_page(page)
        if batch.stop < len(self.segments):
            return None
        size = sum(segment.length for segment in self.segments)
        self.manifest.add_final(self._pages.finish(size, StateDigest(bytes(32))))
        return self.segments[-1].length if self.segments else None
