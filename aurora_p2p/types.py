"""The nouns of the system: identifiers and frozen records shared by every room.

Identifiers are NewTypes: they cost nothing at run time and keep a version from being passed where a sequence number
belongs. Records are frozen msgspec structs, so that they can travel on the wire as they are; wire/ checks their limits.
"""

from __future__ import annotations

from typing import Annotated, NewType

import msgspec
from msgspec import Meta

PeerId = NewType("PeerId", str)
"""libp2p peer id of an Ed25519 key in base58btc (libp2p peer-ids spec, identity multihash): it contains the key."""
SwarmId = NewType("SwarmId", str)
"""Peer id form of the swarm's first root key: self-certifying."""
RunId = NewType("RunId", bytes)
"""16 random bytes naming one training run."""
ArtifactId = NewType("ArtifactId", bytes)
"""BLAKE3 (32 bytes) of the header's encoded body."""
ManifestHash = NewType("ManifestHash", bytes)
"""BLAKE3 (32 bytes) of the final page's encoded body: what leases, results and HEAD carry."""
StateDigest = NewType("StateDigest", bytes)
"""32 bytes, four little-endian uint64 lanes: the digest of a whole checkpoint (docs/protocol/02-artifacts.md)."""
LeaseId = NewType("LeaseId", bytes)
"""16 random bytes."""
Version = NewType("Version", int)
"""The policy version: the number of optimizer steps behind the weights. Version t enters optimizer step t."""
Seq = NewType("Seq", int)
"""Publication number, fsynced before a header leaves and never used again; separate from the version."""
Generation = NewType("Generation", int)
"""Number of the root's delegation: higher revokes lower."""
Epoch = NewType("Epoch", int)
"""Number of the roster."""
Step = NewType("Step", int)
"""The optimizer step that consumes a sample (its target step)."""

NO_BASE = Version(-1)
"""Base version of an artifact that needs none (a snapshot)."""

DTYPES: dict[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
"""Every dtype a checkpoint may hold, by its safetensors name, and its item size in bytes."""


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of every value that travels: immutable, a positional array on the wire, unknown fields refused."""


class TensorSpec(Record, frozen=True):
    """One tensor of a checkpoint: safetensors name, dtype (a key of DTYPES) and shape (0-d is the empty tuple)."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    dtype: Annotated[str, Meta(max_length=16)]
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=1 << 40)], ...], Meta(max_length=8)]

    @property
    def elements(self) -> int:
        """Number of elements (1 for a 0-d tensor)."""
        count = 1
        for side in self.shape:
            count *= side
        return count

    @property
    def nbytes(self) -> int:
        """Size in bytes, unpadded."""
        return self.elements * DTYPES[self.dtype]


class SampleKey(Record, frozen=True):
    """The unit of work, unique in the ledger: prompt is an index in the step, sample an index in the group."""

    run: RunId
    step: Step
    prompt: int
    sample: int
