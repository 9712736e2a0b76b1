"""What a publication's header says, and what is remembered of one that is complete.

RESERVED (seq on disk) -> OPEN (header on disk, in the swarm: artifact/writer.py) -> COMPLETE | ABORTED
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from aurora_p2p.artifact.manifest import Manifest, manifest_hash_of
from aurora_p2p.artifact.writer import segment_size
from aurora_p2p.types import ArtifactId, ManifestHash, RunId, Seq, StateDigest, SwarmId, Version
from aurora_p2p.wire.manifest import Header
from aurora_p2p.wire.trainer import BeginPublish

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest complete publication: what HEAD says, and the base of the next delta."""

    seq: Seq
    version: Version
    artifact: ArtifactId
    manifest_hash: ManifestHash
    digest: StateDigest
    kind: str


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
