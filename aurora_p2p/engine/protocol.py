"""What every rollout engine can do. It runs in a child process (worker.py); the daemon speaks to it through client.py.

    EMPTY --load--> SERVING --stage--> SERVING with staged versions --commit--> SERVING the new version

Invariants: a call that raises has had no effect. What is served always has the digest that `load`, `commit` or `audit`
last returned. Stage may run in another thread beside generate; the other calls come from one thread, one at a time, so
a commit never falls into a generation. No sample mixes two versions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from aurora_p2p.types import StateDigest, Version
from aurora_p2p.wire.control import LeaseSample, Sampling
from aurora_p2p.wire.engine import Generated
from aurora_p2p.wire.fold import Source
from aurora_p2p.wire.manifest import Header


class Outcome(NamedTuple):
    """digest: of the weights now served (after stage: of those staged). audited: recomputed in full just now.

    changed: elements found by stage or written by load and commit.
    """

    version: Version
    digest: StateDigest
    audited: bool
    changed: int


class Served(NamedTuple):
    version: Version
    digest: StateDigest


class Step(NamedTuple):
    """One decoding step: how many tokens it drew, and the samples that it finished."""

    tokens: int
    finished: list[Generated]


class RolloutEngine(Protocol):
    @property
    def served(self) -> Served:
        """What generate draws from now. Raises CheckpointError while nothing is loaded."""

    def load(self, header: Header, body: Path, digest: StateDigest, deltas: Sequence[Source] = ()) -> Outcome:
        """Serve a snapshot with deltas over it; audited.

        Raises CheckpointError, DigestMismatch, WireError, StoreError.
        """

    def stage(self, header: Header, body: Path, digest: StateDigest) -> Outcome:
        """Decode and verify an artifact beside the live weights. Raises like load."""

    def commit(self, version: Version, *, audit: bool) -> Outcome:
        """Write what is staged up to `version`, in place, all or nothing. Raises CheckpointError, DigestMismatch."""

    def audit(self) -> Outcome:
        """Recompute the digest from the memory that is served. Raises DigestMismatch when it is not right."""

    def generate(
        self,
        sampling: Sampling,
        prompts: Sequence[Sequence[int]],
        samples: Sequence[LeaseSample],
        stop: threading.Event,
    ) -> Iterator[Step]:
        """Draw every sample, seed-bound; ends early, between two tokens, once `stop` is set.

        Raises WireError when the request does not fit the model.
        """
