"""The pieces of GRPO as pure functions on tensors: advantages, ratios, the clipped token loss.

Three policies give a log-probability to each sampled token:
    behaviour   the node's, at the version it sampled with (up to one step old)
    proximal    the trainer's, entering this optimizer step
    current     the trainer's, with gradient
The PPO clip compares current with proximal; what the proximal policy differs from the behaviour policy (staleness,
rounding to bf16, another engine's numerics) is corrected by a truncated importance weight
(decoupled PPO: Hilton et al. 2021, arXiv:2110.00641; truncation: Espeholt et al. 2018, arXiv:1802.01561).
GRPO: Shao et al. 2024, arXiv:2402.03300. No KL term: it made no difference where it was measured.
Log-probabilities are log_softmax(logits / T), end of sequence included (honesty.py, wire/control.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossOptions:
    """Named choices of the loss; the defaults are those of the recipe that was measured to learn."""

    clip_low: float = 0.2
    """Ratios current / proximal below 1 - clip_low get no gradient where the advantage is negative."""
    clip_high: float = 0.2
    """Ratios above 1 + clip_high get no gradient where the advantage is positive."""
    importance_cap: float = 2.0
    """Largest weight proximal / behaviour."""
    divide_by_std: bool = True
    """(r - mean) / (std + 1e-4) instead of r - mean (Dr. GRPO, arXiv:2503.20783)."""
    zero_variance: Literal["count", "drop"] = "count"
    """Groups with equal rewards have no gradient; "count" keeps their tokens in the normaliser, "drop" does not."""
    normalise: Literal["token", "sequence"] = "token"
    """Mean over all tokens of the step (DAPO, arXiv:2503.14476), or over sequences of each one's token mean."""
    truncated: Literal["train", "mask"] = "train"
    """Samples cut off at max_tokens: trained on like others, or left out of the loss and its normaliser."""


STD_FLOOR = 1e-4
"""Added to a group's standard deviation (as in the GRPO paper's code)."""


def group_advantages(rewards: Tensor, *, divide_by_std: bool) -> Tensor:
    """float32[prompts, group] -> the same shape: each reward against its own group.

    NaN is a sample without reward: it stays out of the group's mean and gets advantage 0. A group with fewer than two
    rewards, or with equal ones, is all 0. std is the unbiased one.
    """
    known = ~rewards.isnan()
    count = known.sum(1, keepdim=True)
    mean = rewards.nansum(1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(known, rewards - mean, 0.0)
    if divide_by_std:
        std = (centred.square().sum(1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
        centred = centred / (std + STD_FLOOR)
    return torch.where(zero_variance(rewards)[:, None], 0.0, centred)


def zero_variance(rewards: Tensor) -> Tensor:
    """float32[prompts, group] -> bool[prompts]: groups whose known rewards are all equal."""
    top = torch.where(rewards.isnan(), -torch.inf, rewards).amax(1)
    bottom = torch.where(rewards.isnan(), torch.inf, rewards).amin(1)
    return top <= bottom


def token_weights(mask: Tensor, normalise: Literal["token", "sequence"]) -> Tensor:
    """bool[rows, tokens] -> float32 weights that sum to 1 over the step; all 0 when no token counts."""
    lengths = mask.sum(1, keepdim=True)
    if normalise == "token":
        return mask / lengths.sum().clamp(min=1)
    return mask / lengths.clamp(min=1) / (lengths > 0).sum().clamp(min=1)


@dataclass(frozen=True, slots=True)
class LossTerms:
    """loss: scalar with gradient. The rest are plain numbers over the tokens with a weight.

    max_ratio: largest current / behaviour; clipped: tokens without gradient because of the clip; capped: tokens whose
    importance weight was truncated; tokens: how many had a weight.
    """

    loss: Tensor
    max_ratio: float
    clipped: int
    capped: int
    tokens: int


def clipped_loss(
    current: Tensor, proximal: Tensor, behaviour: Tensor, advantages: Tensor, weights: Tensor, options: LossOptions
) -> LossTerms:
    """Sum over tokens of weights * importance * -min(r A, clip(r) A), r = current / proximal.

    current, proximal, behaviour: float32[rows, tokens] log-probabilities, only `current` with gradient; advantages:
    float32[rows]; weights: float32[rows, tokens], 0 where a token does not count (padding).
    """
    counted = weights > 0
    importance = (proximal - behaviour).exp()
    ratio = (current - proximal).exp()
    advantage = advantages[:, None]
    bounded = ratio.clamp(1 - options.clip_low, 1 + options.clip_high)
    surrogate = torch.minimum(ratio * advantage, bounded * advantage)
    loss = -(weights * importance.clamp(max=options.importance_cap) * surrogate).sum()
    with torch.no_grad():
        clipped = counted & (surrogate < ratio * advantage)
        capped = counted & (importance > options.importance_cap)
        ratios = torch.where(counted, (current - behaviour).exp(), 0.0)
        return LossTerms(
            loss,
            float(ratios.max()) if ratios.numel() else 0.0,
            int(clipped.sum()),
            int(capped.sum()),
            int(counted.sum()),
        )
