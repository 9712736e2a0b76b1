"""The artifacts a node has heard of, and how it stands with each."""

from __future__ import annotations

from dataclasses import dataclass

from aurora_p2p.artifact.chain import Candidate, Checkpoint
from aurora_p2p.artifact.manifest import Manifest, manifest_hash_of
from aurora_p2p.types import ManifestHash


@dataclass(slots=True)
class Known:
    """heard: CLOCK_BOOTTIME. begun: disk is reserved. accepted: and the exchange fetches it.

    own: folded here (folds.py).
    """

    manifest: Manifest
    heard: float
    complete: bool = False
    begun: bool = False
    accepted: bool = False
    own: bool = False

    @property
    def reaches(self) -> Checkpoint:
        """Where it leads. What is folded here goes by the manifest hash of the publication that it ends at."""
        header, final = self.manifest.header, self.manifest.signed_final
        if final is None or self.manifest.final is None:
            return Checkpoint(header.version, None, None)
        named = ManifestHash(header.base_manifest) if self.own else manifest_hash_of(final)
        return Checkpoint(header.version, named, self.manifest.final.digest)

    def candidate(self, held_bytes: int) -> Candidate:
        """For the plan of what to fetch; held_bytes: of its body, on disk."""
        manifest = self.manifest
        size = manifest.final.length if manifest.final else manifest.header.size_bound
        missing = 0 if self.complete else max(size - held_bytes, 1)
        return Candidate(manifest.artifact, manifest.header, self.reaches, missing)
