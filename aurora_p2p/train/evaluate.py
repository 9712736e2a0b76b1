"""Held-out accuracy.

It is sampled, as the policy is trained: a mean over prompts for each of several sampling seeds, and the standard
deviation between seeds. Weights are evaluated as nodes serve them, rounded to bf16.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from aurora_p2p.delta.tensors import Bits
from aurora_p2p.engine.model import build_model, checkpoint_bits, load_bits
from aurora_p2p.train.loop import Scorer
from aurora_p2p.train.tasks import Task, Tokens, sampling_of
from aurora_p2p.types import TensorSpec
from aurora_p2p.wire.control import Sampling
from aurora_p2p.wire.manifest import ModelConfig


@dataclass(frozen=True, slots=True)
class Accuracy:
    """mean and sd of the reward over sampling seeds (sd 0 for one seed); stopped: share that ended by itself."""

    mean: float
    sd: float
    stopped: float


@dataclass(frozen=True, slots=True)
class Weights:
    """A checkpoint to evaluate."""

    config: ModelConfig
    specs: Sequence[TensorSpec]
    bits: Mapping[str, Bits]

    @classmethod
    def of(cls, config: ModelConfig, model: nn.Module) -> Weights:
        """A model's weights, rounded to bf16 as they are published."""
        return cls(config, *checkpoint_bits(model))

    def model(self) -> nn.Module:
        """A float32 model with exactly these weights."""
        built = build_model(self.config, torch.float32, initialize=False)
        load_bits(built, self.specs, self.bits)
        return built


def sampled_accuracy(
    weights: Weights, task: Task, prompts: Sequence[Tokens], seeds: Sequence[int], score: Scorer
) -> Accuracy:
    """Mean reward of one sample per prompt and seed; a sample without reward counts 0. prompts have one length."""
    model, means, stopped = weights.model(), [], 0
    for seed in seeds:
        completions = sample(model, prompts, sampling_of(task), seed)
        rewards = score(list(zip(prompts, completions, strict=True)))
        means.append(statistics.fmean(reward or 0.0 for reward in rewards))
        stopped += sum(tokens[-1] in task.stop_tokens for tokens in completions)
    sd = statistics.stdev(means) if len(means) > 1 else 0.0
    return Accuracy(statistics.fmean(means), sd, stopped / (len(prompts) * len(seeds)))


@torch.inference_mode()
def sample(model: nn.Module, prompts: Sequence[Tokens], sampling: Sampling, seed: int) -> list[Tokens]:
    """One completion per prompt; prompts have one length. Not seed-bound: that is the engine's, for what is checked."""
    generator = torch.Generator().manual_seed(seed)
    step = torch.tensor(prompts)
    columns, cache = [], None
    for _ in range(sampling.max_tokens):
        out = model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        step = torch.multinomial((out.logits[:, -1] / sampling.temperature).softmax(-1), 1, generator=generator)
        columns.append(step)
    return [_until_stop(row, sampling.stop_tokens) for row in torch.cat(columns, 1).tolist()]


def _until_stop(tokens: list[int], stops: Sequence[int]) -> Tokens:
    end = next((place + 1 for place, token in enumerate(tokens) if token in stops), len(tokens))
    return tuple(tokens[:end])
