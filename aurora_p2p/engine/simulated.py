"""An engine with real weights and invented tokens: for fleets larger than the machine, and for tests of the rest.

Weights are held, staged, committed, undone and audited exactly as in every engine (held.py): only the model is missing.
A token is a hash of the weights' digest, the sample's seed and its position, so that a sample is the same in any batch
and on any node, and another one after each commit. Time is real: a decoding step of a full batch takes as long as on
the device it is calibrated to, however few rows are left in it.

Its rollouts teach nothing and its log-probabilities are invented: whatever shows its figures says "simulated".
Imports neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import math
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from aurora_p2p.engine.held import HeldWeights
from aurora_p2p.engine.holding import HoldingEngine
from aurora_p2p.engine.protocol import Step
from aurora_p2p.engine.requests import check_request
from aurora_p2p.local.clock import boottime
from aurora_p2p.types import StateDigest
from aurora_p2p.wire.control import LeaseSample, Sampling
from aurora_p2p.wire.engine import Generated
from aurora_p2p.wire.fold import Source
from aurora_p2p.wire.manifest import Header

SHORTEST_PAUSE_SECONDS = 0.005
"""The engine sleeps when it is so much ahead of its device: fewer wake-ups, the same rate."""


class SimulatedEngine(HoldingEngine[HeldWeights]):
    """RolloutEngine without a model. tokens_per_second: of a full batch of max_batch rows."""

    def __init__(self, tokens_per_second: float, *, max_batch: int = 64) -> None:
        super().__init__()
        self.max_batch = max_batch
        self._step_seconds = max_batch / tokens_per_second

    def _read(self, header: Header, body: Path, digest: StateDigest, deltas: Sequence[Source]) -> HeldWeights:
        return HeldWeights.read(header, body, digest, deltas)

    def generate(
        self,
        sampling: Sampling,
        prompts: Sequence[Sequence[int]],
        samples: Sequence[LeaseSample],
        stop: threading.Event,
    ) -> Iterator[Step]:
        held = self._loaded()
        check_request(held.config, sampling, prompts, samples)
        due = boottime()
        for start in range(0, len(samples), self.max_batch):
            rows = [
                invented(held.digest, index, samples[index], sampling)
                for index in range(start, min(start + self.max_batch, len(samples)))
            ]
            for length in range(1, max(len(row.tokens) for row in rows) + 1):
                due += self._step_seconds
                ahead = due - boottime()
                if stop.is_set() or (ahead > SHORTEST_PAUSE_SECONDS and stop.wait(ahead)):
                    return
                going = [row for row in rows if len(row.tokens) >= length]
                yield Step(len(going), [row for row in going if len(row.tokens) == length])


def invented(digest: StateDigest, index: int, sample: LeaseSample, sampling: Sampling) -> Generated:
    """One whole sample: tokens until a stop token or the longest length; log-probabilities finite and <= 0."""
    seed = hashlib.blake2b(sample.seed.to_bytes(8, "little"), key=bytes(digest)).digest()
    chance = random.Random(seed)  # noqa: S311 - no secret, and the same everywhere
    stops, tokens = frozenset(sampling.stop_tokens), list[int]()
    while len(tokens) < sampling.max_tokens:
        tokens.append(chance.randrange(sampling.vocabulary))
        if tokens[-1] in stops:
            break
    most = math.log(sampling.vocabulary)
    logprobs = tuple(-most * chance.random() for _ in tokens)
    return Generated(index, tuple(tokens), logprobs, "stop" if tokens[-1] in stops else "length")
