"""What a trainer and its swarm host say to each other over the host's local socket (frames of wire/frame.py).

    trainer                                  host
    Attach                               ->  Attached
    BeginPublish, Body*..., EndPublish   ->  Published | Failed      (Body's payload is a piece of the block stream)
    AbortPublish                         ->  Noted
    SubmitPrompts                        ->  Noted
    TakeRollouts                         ->  Rollouts | Waiting      (answered within `wait_seconds`)
    StepDone                             ->  Noted
    AskStatus                            ->  StatusJson

One request at a time per connection; several connections may be open.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from aurora_p2p.types import Record, Seq, Version
from aurora_p2p.wire.control import Finish, Noted, PromptTokens, Sampling, Token
from aurora_p2p.wire.limits import (
    MAX_NEW_TOKENS,
    MAX_TENSORS,
    U62,
    BaseVersionField,
    Bytes32,
    DigestField,
    ManifestField,
    PeerField,
    RunField,
    Seconds,
    SeqField,
    StepField,
    SwarmField,
    Text,
    VersionField,
)
from aurora_p2p.wire.manifest import ModelConfig, TensorEntry

MAX_REWARD = 1e12
"""Larger ones are told as none."""


class Attach(Record, frozen=True, tag="attach"):
    pass


class Attached(Record, frozen=True, tag="attached"):
    """The newest complete publication; version -1, seq 0 and empty hashes when there is none.

    deltas: complete ones since the newest snapshot; the next publication should be a snapshot once they are many.
    following: the lowest version after all that the run has ever published, also when their artifacts are lost.
    """

    swarm: SwarmField
    run: RunField
    version: BaseVersionField
    digest: Annotated[bytes, Meta(max_length=32)]
    segment_bytes: U62
    seq: SeqField = Seq(0)
    manifest_hash: Annotated[bytes, Meta(max_length=32)] = b""
    deltas: U62 = 0
    following: VersionField = Version(0)


class BeginPublish(Record, frozen=True, tag="begin"):
    """Everything the host needs to sign the header before the first block exists.

    A delta's base is always the newest complete publication: base_version and base_digest must name it.
    """

    version: VersionField
    kind: Literal["delta", "snapshot"]
    base_version: BaseVersionField
    base_digest: Annotated[bytes, Meta(max_length=32)]
    layout: Bytes32
    size_bound: U62
    class_map: Annotated[bytes, Meta(max_length=7)]
    tensors: Annotated[tuple[TensorEntry, ...], Meta(max_length=MAX_TENSORS)]
    model: ModelConfig | None


class Body(Record, frozen=True, tag="body"):
    """The frame's payload is the next piece of the artifact's byte stream."""


class EndPublish(Record, frozen=True, tag="end"):
    digest: DigestField


class AbortPublish(Record, frozen=True, tag="abort"):
    detail: Text


class Published(Record, frozen=True, tag="published"):
    seq: SeqField
    version: VersionField
    manifest_hash: ManifestField
    segments: U62
    length: U62


class Failed(Record, frozen=True, tag="failed"):
    """The request was not carried out. retry_seconds above 0: nothing is wrong with it, try again after that time."""

    detail: Text
    hint: Text = ""
    retry_seconds: Seconds = 0.0


class SubmitPrompts(Record, frozen=True, tag="submit-prompts"):
    """The prompts of one optimizer step; each is sampled `group` times."""

    step: StepField
    prompts: Annotated[tuple[PromptTokens, ...], Meta(min_length=1, max_length=65_536)]
    group: Annotated[int, Meta(ge=1, le=1024)]
    sampling: Sampling


class TakeRollouts(Record, frozen=True, tag="take"):
    """short: what becomes of groups that are not complete. "wait": they are waited for. "drop": the complete ones are
    handed out without them, once there is one."""

    step: StepField
    wait_seconds: Seconds
    short: Literal["wait", "drop"] = "wait"


class Rollout(Record, frozen=True):
    """One admitted sample. logprobs are under the sampling policy `version`."""

    prompt: U62
    sample: U62
    version: VersionField
    node: PeerField
    tokens: Annotated[tuple[Token, ...], Meta(max_length=MAX_NEW_TOKENS)]
    logprobs: Annotated[tuple[float, ...], Meta(max_length=MAX_NEW_TOKENS)]
    finish: Finish


class Rollouts(Record, frozen=True, tag="rollouts"):
    """Every sample of the step's complete groups, ordered by (prompt, sample). seconds: first grant to last admission.

    short_*: of groups left out because they were not complete: how many, and the samples and tokens admitted of them.
    """

    step: StepField
    samples: Annotated[tuple[Rollout, ...], Meta(max_length=1 << 20)]
    seconds: Seconds
    tokens: U62
    short_groups: U62 = 0
    short_samples: U62 = 0
    short_tokens: U62 = 0


class Waiting(Record, frozen=True, tag="waiting"):
    step: StepField
    admitted: U62
    total: U62
    why: Text


class StepDone(Record, frozen=True, tag="step-done"):
    """One optimizer step is trained and published; for the host's screen and status, nothing is decided by it.

    reward: mean over the step's scored samples, None without any. Seconds: the trainer's own measure of waiting for
    rollouts, training (scoring included) and publishing.
    """

    step: StepField
    reward: Annotated[float, Meta(ge=-MAX_REWARD, le=MAX_REWARD)] | None
    waited_seconds: Seconds
    trained_seconds: Seconds
    published_seconds: Seconds


class AskStatus(Record, frozen=True, tag="ask-status"):
    pass


class StatusJson(Record, frozen=True, tag="status"):
    json: str


TrainerRequest = (
    Attach | BeginPublish | Body | EndPublish | AbortPublish | SubmitPrompts | TakeRollouts | StepDone | AskStatus
)
HostReply = Attached | Published | Failed | Noted | Rollouts | Waiting | StatusJson
