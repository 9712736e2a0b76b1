"""Field types with their limits: what a stranger may put in each place."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from aurora_p2p.types import (
    ArtifactId,
    Epoch,
    Generation,
    LeaseId,
    ManifestHash,
    PeerId,
    RunId,
    Seq,
    StateDigest,
    Step,
    SwarmId,
    Version,
)

_COUNTER = Meta(ge=0, le=2**62)
_HASH = Meta(min_length=32, max_length=32)
_ID16 = Meta(min_length=16, max_length=16)

U62 = Annotated[int, _COUNTER]
U63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A sampling seed: vLLM draws a plain 63-bit `seed=`, -1 would mean none."""
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Bytes16 = Annotated[bytes, _ID16]
Bytes32 = Annotated[bytes, _HASH]
Signature64 = Annotated[bytes, Meta(min_length=64, max_length=64)]
PeerField = Annotated[PeerId, Meta(min_length=40, max_length=64)]
SwarmField = Annotated[SwarmId, Meta(min_length=40, max_length=64)]
RunField = Annotated[RunId, _ID16]
ArtifactField = Annotated[ArtifactId, _HASH]
ManifestField = Annotated[ManifestHash, _HASH]
DigestField = Annotated[StateDigest, _HASH]
LeaseField = Annotated[LeaseId, _ID16]
VersionField = Annotated[Version, _COUNTER]
BaseVersionField = Annotated[Version, Meta(ge=-1, le=2**62)]
SeqField = Annotated[Seq, _COUNTER]
GenerationField = Annotated[Generation, _COUNTER]
EpochField = Annotated[Epoch, _COUNTER]
StepField = Annotated[Step, _COUNTER]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Text = Annotated[str, Meta(max_length=512)]
Address = Annotated[str, Meta(min_length=1, max_length=256)]
Addresses = Annotated[tuple[Address, ...], Meta(max_length=16)]
Seconds = Annotated[float, Meta(ge=0, le=10**7)]
Rate = Annotated[float, Meta(ge=0, le=10**12)]

MAX_TENSORS = 20_000
MAX_MEMBERS = 1024
MAX_SEGMENT = 4 * 2**20
MAX_SEGMENTS = 1 << 20
MAX_PAGE_HASHES = 256
MAX_PROMPT_TOKENS = 32_768
MAX_NEW_TOKENS = 32_768
MAX_LEASE_SAMPLES = 1024
MAX_DISTANCES = 64
MAX_RTT_MS = 60_000
