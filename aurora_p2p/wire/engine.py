"""What a daemon and its engine child say to each other over their socket pair (frames of wire/frame.py).

Every request is answered by exactly one reply with the same `id`; Generated replies stream, the last has `done` set.
Load, Stage and Generate may overlap (staging goes on while generating); Commit waits for running generations to end.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from aurora_p2p.types import Record
from aurora_p2p.wire.control import Finish, LeaseSample, PromptTokens, Sampling, Token
from aurora_p2p.wire.fold import MAX_SOURCES, Source
from aurora_p2p.wire.limits import (
    MAX_LEASE_SAMPLES,
    MAX_NEW_TOKENS,
    U62,
    Address,
    Bytes32,
    DigestField,
    Name,
    Rate,
    Seconds,
    Text,
    VersionField,
)
from aurora_p2p.wire.manifest import Header

RequestId = U62


class EngineStart(Record, frozen=True, tag="start"):
    """First message. engine: which implementation ("hf"); device: "cpu" or "cuda"; max_batch: sequences at once."""

    id: RequestId
    engine: Name
    device: Name
    threads: Annotated[int, Meta(ge=1, le=1024)]
    max_batch: Annotated[int, Meta(ge=1, le=4096)]


class Load(Record, frozen=True, tag="load"):
    """Build the model of a snapshot's header, read its body, check the full digest. Replaces anything loaded.

    deltas: applied to the snapshot's bits, in order, before a model is built of them; the last one's version is served.
    """

    id: RequestId
    header: Header
    body: Address
    digest: DigestField
    deltas: Annotated[tuple[Source, ...], Meta(max_length=MAX_SOURCES)] = ()


class Stage(Record, frozen=True, tag="stage"):
    """Decode an artifact beside the live weights; the base must be the committed (or the last staged) version.

    A snapshot is staged whole. Nothing the engine serves changes.
    """

    id: RequestId
    header: Header
    body: Address
    digest: DigestField


class Commit(Record, frozen=True, tag="commit"):
    """Write what was staged for `version` in place; audit recomputes the full digest from the engine's own memory."""

    id: RequestId
    version: VersionField
    audit: bool


class Generate(Record, frozen=True, tag="generate"):
    id: RequestId
    sampling: Sampling
    prompts: Annotated[tuple[PromptTokens, ...], Meta(max_length=MAX_LEASE_SAMPLES)]
    samples: Annotated[tuple[LeaseSample, ...], Meta(max_length=MAX_LEASE_SAMPLES)]


class StopGenerating(Record, frozen=True, tag="stop-generating"):
    """Abort the running Generate `generate`: its last reply comes at once, with `done`."""

    id: RequestId
    generate: RequestId


class Audit(Record, frozen=True, tag="audit"):
    """Recompute the full digest of the served weights."""

    id: RequestId


class Close(Record, frozen=True, tag="close"):
    id: RequestId


class Done(Record, frozen=True, tag="done"):
    """`digest` is of the weights now served (Stage: of the staged ones); seconds is the work's own time.

    changed: elements that Stage found or Commit wrote.
    """

    id: RequestId
    version: VersionField
    digest: Annotated[bytes, Meta(max_length=32)]
    audited: bool
    changed: U62
    seconds: Seconds


class EngineFailed(Record, frozen=True, tag="failed"):
    """The request had no effect. kind: the error's class name in errors.py ("DigestMismatch", ...)."""

    id: RequestId
    kind: Name
    detail: Text


class Generated(Record, frozen=True):
    """One finished sample, in the order of finishing; index points into Generate.samples."""

    index: Annotated[int, Meta(ge=0, lt=MAX_LEASE_SAMPLES)]
    tokens: Annotated[tuple[Token, ...], Meta(max_length=MAX_NEW_TOKENS)]
    logprobs: Annotated[tuple[float, ...], Meta(max_length=MAX_NEW_TOKENS)]
    finish: Finish


class Samples(Record, frozen=True, tag="samples"):
    """Finished samples of Generate `id`, all drawn at `version`. tokens_per_second is of this batch."""

    id: RequestId
    version: VersionField
    digest: Bytes32
    samples: Annotated[tuple[Generated, ...], Meta(max_length=MAX_LEASE_SAMPLES)]
    tokens_per_second: Rate
    first_token_at: Seconds
    """CLOCK_BOOTTIME seconds of the batch's first new token."""
    last_token_at: Seconds
    done: bool


EngineRequest = EngineStart | Load | Stage | Commit | Generate | StopGenerating | Audit | Close
EngineReply = Done | EngineFailed | Samples
