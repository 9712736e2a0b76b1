"""One optimizer step on a tiny model: what is packed, what is trained, what is left alone."""

import math

import pytest
import torch
from torch import nn

from aurora_p2p.errors import StaleError
from aurora_p2p.train.batch import completion_logprobs, pack
from aurora_p2p.train.loop import GrpoTrainer, TrainOptions, max_lag
from aurora_p2p.train.loss import LossOptions
from aurora_p2p.types import Step, Version
from aurora_p2p.wire.manifest import ModelConfig
from aurora_p2p.wire.trainer import Rollout

CONFIG = ModelConfig("qwen3", 8, 8, 8, 1, 1, 1, 8, 16, 10_000.0, 1e-6, True, False, (7,), 0)
PROMPTS = [(1, 2, 3), (4, 5)]


class Output:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class Bigram(nn.Module):
    """Logits depend on the last token alone: log-probabilities can be read off a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))

    def forward(self, input_ids: torch.Tensor, logits_to_keep: int, use_cache: bool) -> Output:
        assert len(input_ids), "a real model cannot run on no rows"
        return Output(self.table[input_ids][:, -logits_to_keep:])


def rollout(prompt: int, sample: int, tokens: tuple[int, ...], model: Bigram, version: int = 0) -> Rollout:
    """A sample drawn by this very model."""
    logprobs, last = [], PROMPTS[prompt][-1]
    for token in tokens:
        logprobs.append(min(0.0, model.table[last].log_softmax(-1)[token].item()))
        last = token
    return Rollout(
        prompt, sample, Version(version), "x" * 52, tokens, tuple(logprobs), "stop" if last == 7 else "length"
    )


def step_of(model: Bigram) -> tuple[list[Rollout], list[float | None]]:
    """Group 0: one right, one wrong; group 1: both right."""
    rollouts = [
        rollout(0, 0, (3, 7), model),
        rollout(0, 1, (2, 2, 2), model),
        rollout(1, 0, (7,), model),
        rollout(1, 1, (7,), model),
    ]
    return rollouts, [1.0, 0.0, 1.0, 1.0]


def test_rows_of_different_lengths_are_packed_under_their_own_columns() -> None:
    rollouts, _ = step_of(Bigram())
    packed = pack(PROMPTS, rollouts)
    assert packed.first == 2
    assert packed.ids.tolist() == [[1, 2, 3, 3, 7, 0], [1, 2, 3, 2, 2, 2], [4, 5, 7, 0, 0, 0], [4, 5, 7, 0, 0, 0]]
    assert packed.mask.int().tolist() == [[0, 1, 1, 0], [0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert packed.behaviour[0].tolist() == pytest.approx([0.0, *rollouts[0].logprobs, 0.0])


def test_log_probabilities_of_the_trainer_are_those_of_the_sampler_in_every_row() -> None:
    model = Bigram()
    rollouts, _ = step_of(model)
    packed = pack(PROMPTS, rollouts)
    current = completion_logprobs(model, packed.ids, packed.first, 1.0)
    assert torch.allclose(current[packed.mask], packed.behaviour[packed.mask], atol=1e-6)


def test_temperature_divides_the_logits() -> None:
    model = Bigram()
    ids = torch.tensor([[1, 2, 3]])
    warm = completion_logprobs(model, ids, 2, 2.0)
    assert warm[0, 0].item() == pytest.approx((model.table[2] / 2).log_softmax(-1)[3].item(), abs=1e-6)


def test_a_step_raises_what_was_rewarded_and_lowers_what_was_not() -> None:
    model = Bigram()
    before = model.table.detach().clone()
    rollouts, rewards = step_of(model)
    report = GrpoTrainer(model, CONFIG, TrainOptions(lr=0.01)).step(PROMPTS, rollouts, rewards)
    probabilities, old = model.table.detach().softmax(-1), before.softmax(-1)
    assert probabilities[3, 3] > old[3, 3]
    assert probabilities[3, 2] < old[3, 2]
    assert torch.equal(model.table[5], before[5])
    assert report.reward == pytest.approx(0.75)
    assert report.max_ratio == pytest.approx(1.0, abs=1e-5)
    assert (report.live_share, report.unscored, report.clipped_share, report.capped_share) == (0.5, 0, 0.0, 0.0)


def test_rows_per_pass_changes_memory_and_nothing_else() -> None:
    tables = []
    for rows in (1, 256):
        model = Bigram()
        rollouts, rewards = step_of(model)
        GrpoTrainer(model, CONFIG, TrainOptions(rows_per_pass=rows)).step(PROMPTS, rollouts, rewards)
        tables.append(model.table.detach())
    assert torch.allclose(*tables, atol=1e-7)


def test_a_step_without_a_difference_in_reward_changes_nothing_whatever_the_momentum() -> None:
    model = Bigram()
    rollouts, rewards = step_of(model)
    trainer = GrpoTrainer(model, CONFIG)
    trainer.step(PROMPTS, rollouts, rewards)
    before = model.table.detach().clone()
    report = trainer.step(PROMPTS, rollouts, [1.0, 1.0, None, 0.0])
    assert torch.equal(model.table, before)
    assert (report.grad_norm, report.live_share, report.unscored) == (0.0, 0.0, 1)
    assert report.reward == pytest.approx(2 / 3)


def test_samples_without_any_reward_are_a_step_that_trains_nothing() -> None:
    model = Bigram()
    rollouts, _ = step_of(model)
    report = GrpoTrainer(model, CONFIG).step(PROMPTS, rollouts, [None] * 4)
    assert report.unscored == 4
    assert math.isnan(report.reward)


def test_a_learning_rate_of_zero_really_steps_and_leaves_every_bit() -> None:
    model = Bigram()
    before = model.table.detach().clone()
    rollouts, rewards = step_of(model)
    trainer = GrpoTrainer(model, CONFIG, TrainOptions(lr=0.0))
    for _ in range(3):
        assert trainer.step(PROMPTS, rollouts, rewards).grad_norm > 0
    assert torch.equal(model.table.view(torch.int32), before.view(torch.int32))


def test_truncated_samples_can_be_left_out_of_the_loss() -> None:
    model = Bigram()
    before = model.table.detach().clone()
    rollouts, rewards = step_of(model)
    options = TrainOptions(loss=LossOptions(truncated="mask"))
    GrpoTrainer(model, CONFIG, options).step(PROMPTS, rollouts, rewards)
    assert torch.equal(model.table[2], before[2])
    assert not torch.equal(model.table[3], before[3])


def test_dropping_groups_without_variance_gives_the_others_more_weight() -> None:
    model = Bigram()
    rollouts, rewards = step_of(model)
    norms = [
        GrpoTrainer(Bigram(), CONFIG, TrainOptions(loss=LossOptions(zero_variance=choice)))
        .step(PROMPTS, rollouts, rewards)
        .grad_norm
        for choice in ("count", "drop")
    ]
    # 5 of the 7 tokens belong to the group that differs
    assert norms[1] / norms[0] == pytest.approx(7 / 5, rel=1e-5)


def test_samples_outside_the_lag_window_are_refused_where_they_are_consumed() -> None:
    model = Bigram()
    fresh, stale = rollout(0, 0, (7,), model, version=5), rollout(0, 1, (7,), model, version=4)
    assert max_lag(Step(5), [fresh]) == 0
    assert max_lag(Step(5), [fresh, stale]) == 1
    with pytest.raises(StaleError, match="lag of 1 to 2"):
        max_lag(Step(6), [fresh, stale])
    with pytest.raises(StaleError, match="lag of -1"):
        max_lag(Step(4), [fresh])
