"""The progressive manifest: header, pages, final page (docs/protocol/02-artifacts.md).

artifact_id   = BLAKE3(header body)
page.prev     = BLAKE3(previous page body); of the first page: artifact_id
final.last    = BLAKE3(last page body)
final.root    = BLAKE3(all segment hashes in order)
manifest_hash = BLAKE3(final page body)
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from aurora_p2p.types import Record, TensorSpec
from aurora_p2p.wire.limits import (
    MAX_PAGE_HASHES,
    MAX_SEGMENT,
    MAX_SEGMENTS,
    MAX_TENSORS,
    U62,
    ArtifactField,
    BaseVersionField,
    Bytes16,
    Bytes32,
    DigestField,
    RunField,
    SeqField,
    SwarmField,
    VersionField,
)
from aurora_p2p.wire.signed import Signable

TensorOp = Literal["delta", "full", "alias", "deleted"]


class TensorEntry(Record, frozen=True):
    """One line of the tensor table. `alias_of` names the tensor whose storage an alias shares, else empty."""

    spec: TensorSpec
    op: TensorOp
    alias_of: Annotated[str, Meta(max_length=256)] = ""


class ModelConfig(Record, frozen=True):
    """What a node may build: an architecture from an allow-list, every number bounded. Never a path, never code."""

    architecture: Literal["qwen3", "qwen2"]
    vocab_size: Annotated[int, Meta(ge=1, le=1 << 20)]
    hidden_size: Annotated[int, Meta(ge=1, le=1 << 15)]
    intermediate_size: Annotated[int, Meta(ge=1, le=1 << 17)]
    layers: Annotated[int, Meta(ge=1, le=256)]
    heads: Annotated[int, Meta(ge=1, le=256)]
    kv_heads: Annotated[int, Meta(ge=1, le=256)]
    head_dim: Annotated[int, Meta(ge=2, le=1024)]
    max_positions: Annotated[int, Meta(ge=1, le=1 << 20)]
    rope_theta: Annotated[float, Meta(gt=0, le=1e12)]
    rms_norm_eps: Annotated[float, Meta(gt=0, lt=1)]
    tie_word_embeddings: bool
    attention_bias: bool
    eos_tokens: Annotated[tuple[Annotated[int, Meta(ge=0, le=1 << 20)], ...], Meta(max_length=16)]
    pad_token: Annotated[int, Meta(ge=0, le=1 << 20)]


class Header(Signable, frozen=True):
    """Signed before anything is scanned, so nothing in it may need a scan.

    size_bound: the publisher's upper bound on the body, bytes; a receiver reserves disk by it.
    tensors: the canonical table; empty in a delta whose layout equals its base's (layout says which).
    class_map: 7 ascending exponent thresholds, or empty for one class.
    """

    domain = "header"
    format: Annotated[int, Meta(ge=1, le=1)]
    swarm: SwarmField
    run: RunField
    version: VersionField
    seq: SeqField
    nonce: Bytes16
    kind: Literal["delta", "snapshot"]
    base_version: BaseVersionField
    base_manifest: Annotated[bytes, Meta(max_length=32)]
    base_digest: Annotated[bytes, Meta(max_length=32)]
    layout: Bytes32
    segment_bytes: Annotated[int, Meta(ge=256, le=MAX_SEGMENT)]
    size_bound: U62
    class_map: Annotated[bytes, Meta(max_length=7)]
    tensors: Annotated[tuple[TensorEntry, ...], Meta(max_length=MAX_TENSORS)]
    model: ModelConfig | None


class Page(Signable, frozen=True):
    """Hashes of segments first .. first + n - 1, 32 bytes each, concatenated."""

    domain = "page"
    artifact: ArtifactField
    first: Annotated[int, Meta(ge=0, lt=MAX_SEGMENTS)]
    hashes: Annotated[bytes, Meta(min_length=32, max_length=32 * MAX_PAGE_HASHES)]
    prev: Bytes32


class FinalPage(Signable, frozen=True):
    """Signed last; its hash is the manifest_hash. Nothing is applied before it verifies."""

    domain = "final-page"
    artifact: ArtifactField
    segments: Annotated[int, Meta(ge=0, le=MAX_SEGMENTS)]
    length: U62
    last: Bytes32
    root: Bytes32
    digest: DigestField
