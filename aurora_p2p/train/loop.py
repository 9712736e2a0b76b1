"""GRPO, one step asynchronous: nodes generate step k + 1 with version k while the trainer trains step k.

    take rollouts of k -> submit k+2 -> train k -> publish version k+1 -> ...

The prompts of two steps are with the swarm at any time, so that a node which has finished its part of step k + 1, and
holds version k + 1, goes on with step k + 2 at once.

Version t is the weights entering step t, so the swarm's newest version is also the next step: a run that stops goes on
from whatever the host holds. A sample of step t may come from version t or t - 1; that is checked once more here, where
it is consumed. Weights enter the swarm before the first prompt does: as what the host already holds, or as a snapshot.
Masters are float32; nodes sample with their bf16 rounding, and the importance weight corrects for it (loss.py).
A run survives its host (patience.py) and, with `RunOptions.save`, itself (save.py, which says what is lost). Without
it a resumed run goes on with the weights it is given and Adam's moments at zero.
Not covered: sharded (FSDP) training.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from aurora_p2p.engine.model import checkpoint_bits
from aurora_p2p.errors import StaleError
from aurora_p2p.local.faults import reach
from aurora_p2p.train.batch import Packed, completion_logprobs, pack, reward_table
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.train.loss import (
    LossOptions,
    LossTerms,
    clipped_loss,
    group_advantages,
    token_weights,
    zero_variance,
)
from aurora_p2p.train.patience import insist
from aurora_p2p.train.publish import Publication, Publisher
from aurora_p2p.train.save import save_patiently
from aurora_p2p.train.tasks import Task, Tokens, sampling_of
from aurora_p2p.types import Step, Version
from aurora_p2p.wire.manifest import ModelConfig
from aurora_p2p.wire.trainer import Rollout, Rollouts, Waiting

MAX_LAG = 1
"""One-step asynchronous."""
AHEAD = MAX_LAG + 1
"""Steps whose prompts the swarm has."""

Out = TypeVar("Out")
Scorer = Callable[[Sequence[tuple[Tokens, Tokens]]], Sequence[float | None]]
"""(prompt, completion) pairs -> rewards; RewardChild.score."""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """One optimizer step. The defaults are the learning phase of the demo recipe."""

    lr: float = 1e-2
    eps: float = 0.1
    """AdamW's epsilon. One as large as this makes the step nearly proportional to the gradient."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    """Sampling temperature; log-probabilities are of logits / temperature."""
    rows_per_pass: int = 256
    """Sequences per forward and backward pass; bounds memory, changes nothing else."""
    loss: LossOptions = field(default_factory=LossOptions)


LEARN = TrainOptions()
SPARSE = TrainOptions(lr=1e-6, eps=1e-8)
"""Plain AdamW at a usual RL learning rate: about 1 % of the bf16 weights change per step."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step. Shares are over the tokens that had a gradient to give (groups with unequal rewards).

    reward: mean over scored samples; max_ratio: largest current / behaviour; clipped_share and capped_share: loss.py;
    grad_norm: before clipping; live_share: samples whose advantage is not 0; unscored: samples without reward.
    """

    loss: float
    reward: float
    max_ratio: float
    clipped_share: float
    capped_share: float
    grad_norm: float
    live_share: float
    unscored: int
    seconds: float


class GrpoTrainer:
    """float32 masters and AdamW."""

    def __init__(self, model: nn.Module, config: ModelConfig, options: TrainOptions = LEARN) -> None:
        """model: float32, of build_model(config). It is trained in place."""
        self.model, self.config, self.options = model.train(), config, options
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=options.lr,
            betas=options.betas,
            eps=options.eps,
            weight_decay=options.weight_decay,
            fused=True,
        )

    def step(
        self, prompts: Sequence[Tokens], rollouts: Sequence[Rollout], rewards: Sequence[float | None]
    ) -> StepReport:
        """One optimizer step on one step's samples; rewards are in the rollouts' order, None where there is none."""
        started = time.perf_counter()
        table = reward_table(len(prompts), rollouts, rewards)
        packed = pack(prompts, rollouts)
        weights = token_weights(self._counted(packed.mask, rollouts, table), self.options.loss.normalise)
        places = torch.tensor([(rollout.prompt, rollout.sample) for rollout in rollouts])
        advantages = group_advantages(table, divide_by_std=self.options.loss.divide_by_std)[places[:, 0], places[:, 1]]
        live = (advantages != 0).nonzero().flatten()
        passes = [
            self._backward(packed, rows, advantages, weights)
            for rows in torch.split(live, self.options.rows_per_pass)
            if rows.numel()  # torch splits nothing into one empty piece
        ]
        grad_norm = self._update() if len(live) else 0.0
        tokens = max(1, sum(terms.tokens for terms in passes))
        return StepReport(
            loss=sum(terms.loss.item() for terms in passes),
            reward=float(table.nanmean()),
            max_ratio=max((terms.max_ratio for terms in passes), default=0.0),
            clipped_share=sum(terms.clipped for terms in passes) / tokens,
            capped_share=sum(terms.capped for terms in passes) / tokens,
            grad_norm=grad_norm,
            live_share=len(live) / len(rollouts),
            unscored=sum(reward is None for reward in rewards),
            seconds=time.perf_counter() - started,
        )

    def _counted(self, mask: Tensor, rollouts: Sequence[Rollout], table: Tensor) -> Tensor:
        """Which tokens are in the loss's normaliser."""
        options = self.options.loss
        equal = zero_variance(table)
        keep = [
            (options.truncated == "train" or rollout.finish == "stop")
            and (options.zero_variance == "count" or not equal[rollout.prompt])
            for rollout in rollouts
        ]
        return mask & torch.tensor(keep)[:, None]

    def _backward(self, packed: Packed, rows: Tensor, advantages: Tensor, weights: Tensor) -> LossTerms:
        ids = packed.ids[rows]
        current = completion_logprobs(self.model, ids, packed.first, self.options.temperature)
        terms = clipped_loss(
            current, current.detach(), packed.behaviour[rows], advantages[rows], weights[rows], self.options.loss
        )
        torch.autograd.backward(terms.loss)
        return terms

    def _update(self) -> float:
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.options.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is asked of the swarm each step."""

    prompts: int = 128
    group: int = 8
    seed: int = 0
    """Of the prompts: step k draws the same ones in every run with this seed."""
    full: bool = False
    """Publish every version as a full snapshot: the baseline that deltas are compared with."""
    save: Path | None = None
    """File that keeps the trainer's state (save.py), written before the version is published; None: none."""
    save_every: int = 1
    """Versions from one save to the next."""


class StepRecord(NamedTuple):
    """One step as the run sees it. full_bytes: the checkpoint's size, what a full copy would have sent.

    generation_seconds: first grant to last admission; wait_seconds: how long the trainer stood still for rollouts.
    """

    step: Step
    report: StepReport
    publication: Publication
    full_bytes: int
    tokens: int
    max_lag: int
    generation_seconds: float
    wait_seconds: float


@dataclass(frozen=True, slots=True)
class AsyncRun:
    """A trainer, the swarm it trains over, and the task they share."""

    client: SwarmClient
    task: Task
    trainer: GrpoTrainer
    score: Scorer
    options: RunOptions = RunOptions()

    def steps(self, count: int, on_wait: Callable[[Waiting], None] | None = None) -> Iterator[StepRecord]:
        """Take `count` optimizer steps from where the swarm stands, yielding after each publication."""
        publisher = Publisher(self.client, self.trainer.config)
        first = self._enter(publisher)
        end = first + count
        for number in range(first, min(first + AHEAD, end)):
            self._submit(Step(number))
        for number in range(first, end):
            step = Step(number)
            started = time.perf_counter()
            rollouts = self._insist(partial(self.client.rollouts, step, on_wait), f"taking the rollouts of step {step}")
            waited = time.perf_counter() - started
            if number + AHEAD < end:
                self._submit(Step(number + AHEAD))
            yield self._consume(step, rollouts, publisher, waited)

    def enter(self) -> Version:
        """Make the trainer's weights the swarm's newest version, if they are not already; returns that version."""
        return self._enter(Publisher(self.client, self.trainer.config))

    def _enter(self, publisher: Publisher) -> Version:
        specs, bits = checkpoint_bits(self.trainer.model)
        adopted = self._insist(partial(publisher.adopt, specs, bits), "attaching")
        head = self._insist(self.client.attach, "attaching")
        return head.version if adopted else publisher.publish(specs, bits, head.following).version

    def _insist(self, work: Callable[[], Out], what: str) -> Out:
        return insist(self.client, work, what)

    def prompts(self, step: Step) -> list[Tokens]:
        """The training prompts of a step."""
        rng = random.Random(f"{self.options.seed}/{step}")  # noqa: S311 - prompts are not secrets
        return self.task.prompts(self.options.prompts, rng)

    def _submit(self, step: Step) -> None:
        sampling = sampling_of(self.task, self.trainer.options.temperature)
        submit = partial(self.client.submit, step, self.prompts(step), self.options.group, sampling)
        self._insist(submit, f"submitting the prompts of step {step}")

    def _consume(self, step: Step, rollouts: Rollouts, publisher: Publisher, waited: float) -> StepRecord:
        """Score, train, save and publish."""
        lag = max_lag(step, rollouts.samples)
        prompts, started = self.prompts(step), time.perf_counter()
        rewards = self.score([(prompts[sample.prompt], sample.tokens) for sample in rollouts.samples])
        report = self.trainer.step(prompts, rollouts.samples, rewards)
        trained, version = time.perf_counter(), Version(step + 1)
        reach("step.trained")
        if self.options.save is not None and version % self.options.save_every == 0:
            save_patiently(self.options.save, self.trainer, version)
        specs, bits = checkpoint_bits(self.trainer.model)
        publication = publisher.publish(specs, bits, version, full=self.options.full)
        self._report(step, report, waited, trained - started, time.perf_counter() - trained)
        return StepRecord(
            step,
            report,
            publication,
            full_bytes=sum(spec.nbytes for spec in specs),
            tokens=rollouts.tokens,
            max_lag=lag,
            generation_seconds=rollouts.seconds,
            wait_seconds=waited,
        )

    def _report(self, step: Step, report: StepReport, waited: float, trained: float, published: float) -> None:
        """Tell the host's screen."""
        done = partial(
            self.client.step_done,
            step,
            report.reward,
            waited_seconds=waited,
            trained_seconds=trained,
            published_seconds=published,
        )
        self._insist(done, f"reporting step {step}")


def max_lag(step: Step, samples: Sequence[Rollout]) -> int:
    """Largest lag of a step's samples. Raises StaleError outside 0..MAX_LAG: the host let through what it must not."""
    lags = [step - sample.version for sample in samples]
    if min(lags) < 0 or max(lags) > MAX_LAG:
        raise StaleError(f"step {step} got samples with a lag of {min(lags)} to {max(lags)}; 0 to {MAX_LAG} is allowed")
    return max(lags)
