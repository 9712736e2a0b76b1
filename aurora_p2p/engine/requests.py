"""Whether a request to generate fits the model that is served: the same for every engine."""

from __future__ import annotations

from collections.abc import Sequence

from aurora_p2p.errors import WireError
from aurora_p2p.wire.control import LeaseSample, Sampling
from aurora_p2p.wire.manifest import ModelConfig


def check_request(
    config: ModelConfig, sampling: Sampling, prompts: Sequence[Sequence[int]], samples: Sequence[LeaseSample]
) -> None:
    """Raises WireError, saying what does not fit."""
    if sampling.vocabulary != config.vocab_size:
        raise WireError(f"the lease's vocabulary is {sampling.vocabulary}, the model's {config.vocab_size}")
    longest = max((len(prompt) for prompt in prompts), default=0) + sampling.max_tokens
    if longest > config.max_positions:
        raise WireError(f"prompt and new tokens make {longest} positions, the model has {config.max_positions}")
    if any(not prompt or max(prompt) >= config.vocab_size for prompt in prompts):
        raise WireError("a prompt is empty or holds a token outside the vocabulary")
    if any(sample.prompt_index >= len(prompts) for sample in samples):
        raise WireError("a sample names a prompt that the request does not hold")
