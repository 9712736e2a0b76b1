"""Verifiable tasks: seeded prompts as token ids, and a score that a program can check.

A task is the trainer's own code. Nodes never see it: they get token ids and sampling limits. `score` runs in the reward
child (rewards.py), on tokens that strangers sent, so it must not evaluate them; a task is named to the child by its
import path ("package.module:NAME").

SORT_DIGITS: sort four digits. "4172>" -> "1247" and end of sequence; bytes are tokens. 512 of its 10,000 prompts are
held out: neither training prompts nor warm-up demonstrations contain them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from aurora_p2p.wire.control import Sampling

if TYPE_CHECKING:
    from random import Random

PAD, BOS, EOS = 256, 257, 258
VOCABULARY = 264
"""256 bytes, PAD, BOS, EOS, padded to a multiple of 8."""

DIGITS = 4
NUMBERS = 10**DIGITS
HELD_OUT = 512
_STRIDE = 7_919
"""A prime: held-out numbers i * _STRIDE mod NUMBERS are distinct and spread over the whole range."""
_JUNK = b"!.~"

Tokens = tuple[int, ...]


class Task(Protocol):
    """What a trainer needs of a task. `path` imports it: "package.module:NAME"."""

    @property
    def path(self) -> str: ...

    @property
    def max_tokens(self) -> int:
        """Most new tokens of one sample, end of sequence included."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def stop_tokens(self) -> Tokens: ...

    def prompts(self, count: int, rng: Random) -> list[Tokens]:
        """Fresh training prompts."""

    def held_out(self, count: int) -> list[Tokens]:
        """The same prompts on every call, none of which `prompts` draws."""

    def score(self, prompt: Tokens, tokens: Tokens) -> float:
        """Reward of a completion, end of sequence included. Must hold for any tokens below `vocabulary`."""


def sampling_of(task: Task, temperature: float = 1.0) -> Sampling:
    """The sampling that nodes are asked for."""
    return Sampling(temperature, task.max_tokens, task.vocabulary, task.stop_tokens)


class SortDigits:
    """Exact match and a clean stop, or nothing."""

    path = "aurora_p2p.train.tasks:SORT_DIGITS"
    max_tokens = DIGITS + 2
    vocabulary = VOCABULARY
    stop_tokens: Tokens = (EOS,)

    def prompts(self, count: int, rng: Random) -> list[Tokens]:
        return [_prompt(_training_number(rng)) for _ in range(count)]

    def held_out(self, count: int) -> list[Tokens]:
        """At most HELD_OUT prompts."""
        if count > HELD_OUT:
            raise ValueError(f"{HELD_OUT} prompts are held out, {count} were asked for")
        return [_prompt(number) for number in _held_out_numbers()[:count]]

    def score(self, prompt: Tokens, tokens: Tokens) -> float:
        return float(tokens == (*self.answer(prompt), EOS))

    def answer(self, prompt: Tokens) -> Tokens:
        """The right completion without its end of sequence."""
        return tuple(sorted(prompt[:DIGITS]))

    def demonstrations(self, count: int, sloppy: float, rng: Random) -> tuple[list[Tokens], list[Tokens]]:
        """(prompts, completions) for the warm-up; a share `sloppy` of them put a junk character after the answer."""
        prompts = self.prompts(count, rng)
        completions = []
        for prompt in prompts:
            junk = (rng.choice(_JUNK),) if rng.random() < sloppy else ()
            completions.append((*self.answer(prompt), *junk, EOS))
        return prompts, completions


SORT_DIGITS = SortDigits()


def _held_out_numbers() -> Sequence[int]:
    return [index * _STRIDE % NUMBERS for index in range(HELD_OUT)]


_HELD_OUT_SET = frozenset(_held_out_numbers())


def _training_number(rng: Random) -> int:
    while True:
        number = rng.randrange(NUMBERS)
        if number not in _HELD_OUT_SET:
            return number


def _prompt(number: int) -> Tokens:
    return tuple(f"{number:0{DIGITS}d}>".encode())
