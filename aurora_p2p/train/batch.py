"""One step's samples as tensors: padded rows, a reward table, log-probabilities of completions.

Rows are right-padded; causal attention makes a padding mask needless. Only completion columns get logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from aurora_p2p.train.tasks import Tokens
from aurora_p2p.wire.trainer import Rollout


class Packed(NamedTuple):
    """Right-padded rows. ids: int64[rows, length]; mask (completion tokens) and behaviour: [rows, length - first].

    Columns of mask and behaviour belong to ids[:, first:].
    """

    ids: Tensor
    mask: Tensor
    behaviour: Tensor
    first: int


def pack(prompts: Sequence[Tokens], rollouts: Sequence[Rollout]) -> Packed:
    """One row per rollout: its prompt and its tokens."""
    first = min(len(prompts[rollout.prompt]) for rollout in rollouts)
    length = max(len(prompts[rollout.prompt]) + len(rollout.tokens) for rollout in rollouts)
    ids = torch.zeros(len(rollouts), length, dtype=torch.int64)
    mask = torch.zeros(len(rollouts), length - first, dtype=torch.bool)
    behaviour = torch.zeros(len(rollouts), length - first)
    for row, rollout in enumerate(rollouts):
        prompt = prompts[rollout.prompt]
        end = len(prompt) + len(rollout.tokens)
        ids[row, :end] = torch.tensor((*prompt, *rollout.tokens))
        mask[row, len(prompt) - first : end - first] = True
        behaviour[row, len(prompt) - first : end - first] = torch.tensor(rollout.logprobs)
    return Packed(ids, mask, behaviour, first)


def completion_logprobs(model: nn.Module, ids: Tensor, first: int, temperature: float) -> Tensor:
    """int64[rows, length] -> float32[rows, length - first]: log-probability of each of ids[:, first:]."""
    targets = ids[:, first:]
    logits = model(input_ids=ids[:, :-1], logits_to_keep=targets.shape[1], use_cache=False).logits
    scaled: Tensor = logits.float() / temperature
    chosen = scaled.gather(2, targets[:, :, None]).squeeze(2)
    return chosen - scaled.logsumexp(2)


def reward_table(prompts: int, rollouts: Sequence[Rollout], rewards: Sequence[float | None]) -> Tensor:
    """float32[prompts, largest group], NaN where there is no reward."""
    table = torch.full((prompts, 1 + max(rollout.sample for rollout in rollouts)), torch.nan)
    for rollout, reward in zip(rollouts, rewards, strict=True):
        if reward is not None:
            table[rollout.prompt, rollout.sample] = reward
    return table
