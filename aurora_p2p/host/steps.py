"""The trainer as the host sees it: finished optimizer steps, and how much of its time it waits for rollouts.

Sans-IO. The wait share is measured at the door: the time in which a trainer waited for rollouts, over the wall time
between two StepDone. History is bounded: the newest KEPT_STEPS steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from aurora_p2p.types import Step
from aurora_p2p.wire.trainer import Rollouts, StepDone

KEPT_STEPS = 200
"""Steps in the history: one per column of the widest screen."""
MIN_SECONDS = 1e-3
"""A step is never timed shorter: a share has a denominator."""


@dataclass(frozen=True, slots=True)
class StepEntry:
    """One finished step. seconds: since the StepDone before it (0 for the first); wait_share: 0 to 1, of that time.

    tokens and generation_seconds are those of the Rollouts taken for it, 0 if they were taken before this start.
    """

    step: Step
    at: float
    seconds: float
    wait_share: float
    reward: float | None
    waited_seconds: float
    trained_seconds: float
    published_seconds: float
    samples: int
    tokens: int
    generation_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Of the nodes together, while they worked on the step; 0 when that is not known."""
        return self.tokens / self.generation_seconds if self.generation_seconds > 0 else 0.0


@dataclass(slots=True)
class _Wait:
    began: float
    trainers: int = 0


class StepHistory:
    """`waiting_began` and `waiting_ended` around each wait, `took` for its Rollouts, `done` for a StepDone."""

    def __init__(self) -> None:
        self.entries: deque[StepEntry] = deque(maxlen=KEPT_STEPS)
        self.connections = 0
        """Open connections of trainers."""
        self._waiting: dict[Step, _Wait] = {}
        self._since = 0.0
        """From when the present waiting counts."""
        self._waited = 0.0
        self._last_done: float | None = None
        self._taken: dict[Step, tuple[int, int, float]] = {}

    @property
    def waits_for(self) -> Step | None:
        """The earliest step that a trainer waits for now."""
        return min(self._waiting, default=None)

    def waiting_seconds(self, now: float) -> float:
        """How long a trainer has been waiting for that step; 0 when none waits."""
        step = self.waits_for
        return now - self._waiting[step].began if step is not None else 0.0

    def waiting_began(self, step: Step, now: float) -> None:
        """A trainer asks for a step's rollouts; the polls of one wait count as one."""
        if not self._waiting:
            self._since = now
        self._waiting.setdefault(step, _Wait(now)).trainers += 1

    def waiting_ended(self, step: Step, now: float) -> None:
        """It has them, turned to something else, or is gone."""
        self._waiting[step].trainers -= 1
        if not self._waiting[step].trainers:
            del self._waiting[step]
        if not self._waiting:
            self._waited += now - self._since

    def took(self, rollouts: Rollouts) -> None:
        """A trainer was given a step's rollouts."""
        self._taken[rollouts.step] = (len(rollouts.samples), rollouts.tokens, rollouts.seconds)
        while len(self._taken) > KEPT_STEPS:
            del self._taken[next(iter(self._taken))]

    def done(self, done: StepDone, now: float) -> StepEntry:
        """A trainer finished a step."""
        waited = self._waited + (now - self._since if self._waiting else 0.0)
        seconds = now - self._last_done if self._last_done is not None else 0.0
        samples, tokens, generation = self._taken.pop(done.step, (0, 0, 0.0))
        entry = StepEntry(
            step=done.step,
            at=now,
            seconds=seconds,
            wait_share=min(waited / max(seconds, MIN_SECONDS), 1.0) if self._last_done is not None else 0.0,
            reward=done.reward,
            waited_seconds=done.waited_seconds,
            trained_seconds=done.trained_seconds,
            published_seconds=done.published_seconds,
            samples=samples,
            tokens=tokens,
            generation_seconds=generation,
        )
        self.entries.append(entry)
        self._last_done, self._waited, self._since = now, 0.0, now
        return entry
