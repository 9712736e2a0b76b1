"""What every engine that holds its own weights does alike: load, stage, commit, audit. Torch-free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

from aurora_p2p.engine.held import HeldWeights
from aurora_p2p.engine.protocol import Outcome, Served
from aurora_p2p.errors import CheckpointError
from aurora_p2p.types import StateDigest, Version
from aurora_p2p.wire.fold import Source
from aurora_p2p.wire.manifest import Header

W = TypeVar("W", bound=HeldWeights)


class HoldingEngine(ABC, Generic[W]):
    """The half of a RolloutEngine that is about weights; `generate` is the other."""

    def __init__(self) -> None:
        self._weights: W | None = None

    @abstractmethod
    def _read(self, header: Header, body: Path, digest: StateDigest, deltas: Sequence[Source]) -> W:
        """Weights from a snapshot's body and the deltas after it, proven to have `digest`."""

    @property
    def served(self) -> Served:
        weights = self._loaded()
        return Served(weights.version, weights.digest)

    def load(self, header: Header, body: Path, digest: StateDigest, deltas: Sequence[Source] = ()) -> Outcome:
        weights = self._weights = self._read(header, body, digest, deltas)
        return Outcome(weights.version, weights.digest, audited=True, changed=weights.elements)

    def stage(self, header: Header, body: Path, digest: StateDigest) -> Outcome:
        pending = self._loaded().stage(header, body, digest)
        return Outcome(pending.version, pending.digest, audited=False, changed=pending.changed)

    def commit(self, version: Version, *, audit: bool) -> Outcome:
        weights = self._loaded()
        changed = weights.commit(version, audit=audit)
        return Outcome(weights.version, weights.digest, audited=audit, changed=changed)

    def audit(self) -> Outcome:
        weights = self._loaded()
        weights.audit()
        return Outcome(weights.version, weights.digest, audited=True, changed=0)

    def _loaded(self) -> W:
        if self._weights is None:
            raise CheckpointError("no model is loaded")
        return self._weights
