"""Tasks of the end-to-end tests, importable by a reward child without torch."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from aurora_p2p.train.tasks import Tokens

VOCABULARY = 264


@dataclass(frozen=True)
class Babble:
    """A task without an answer: the reward is how many tokens of a completion are even. No token ends it."""

    path: str
    max_tokens: int
    vocabulary: int = VOCABULARY
    stop_tokens: Tokens = ()

    def prompts(self, count: int, rng: Random) -> list[Tokens]:
        return [tuple(rng.randrange(256) for _ in range(5)) for _ in range(count)]

    def held_out(self, count: int) -> list[Tokens]:
        return self.prompts(count, Random(0))

    def score(self, prompt: Tokens, tokens: Tokens) -> float:
        return sum(token % 2 == 0 for token in tokens) / len(tokens)


QUICK = Babble("tests.e2e.tasks:QUICK", 6)
SLOW = Babble("tests.e2e.tasks:SLOW", 200)
"""A lease of SLOW lasts seconds: long enough to be met in the middle of it."""
