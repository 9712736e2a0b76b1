"""Which stored artifacts a fold is made of, and when one is worth its writing. Pure.

A snapshot is due        when the versions after the last one are many, or cost as much to apply as half of it
WriteBudget              folds write no more bytes an hour than the owner allows: SSDs wear out by writing
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from aurora_p2p.artifact.chain import SNAPSHOT_RATIO, Candidate, Checkpoint, catch_up
from aurora_p2p.artifact.retention import Resident, candidate_of
from aurora_p2p.types import ArtifactId, StateDigest, Version

FOLD_VERSIONS = 32
"""Artifacts after the last fold at which the next is due. More make restarts and newcomers slow (each is decoded);
fewer make folding the larger part of the writing."""
FOLD_RATIO = SNAPSHOT_RATIO
"""Or when they take this share of the snapshot's bytes: a newcomer would pay half as much again."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a fold reads. base: how many of the artifacts make the state that it starts from; 0 for a snapshot."""

    artifacts: tuple[ArtifactId, ...]
    base: int
    version: Version
    digest: StateDigest


def way_to(residents: Collection[Resident], version: Version, digest: StateDigest) -> tuple[Candidate, ...]:
    """The complete artifacts that rebuild a state, in order; empty when they are not all here."""
    known = [candidate_of(one) for one in residents if one.header.version <= version]
    known = [one for one in known if one.header.version < version or one.reaches.digest == digest]
    route = catch_up(None, known)
    return route if route and route[-1].header.version == version else ()


def way_onward(residents: Collection[Resident], start: Checkpoint) -> tuple[Candidate, ...]:
    """The complete deltas from a state to the newest that they lead to."""
    return catch_up(start, [candidate_of(one) for one in residents if one.header.kind == "delta"])


def snapshot_plan(residents: Collection[Resident], version: Version, digest: StateDigest) -> Plan | None:
    """A snapshot of a version; None when it cannot be rebuilt."""
    route = way_to(residents, version, digest)
    return Plan(tuple(one.artifact for one in route), 0, version, digest) if route else None


def squash_plan(residents: Collection[Resident], start: Checkpoint) -> Plan | None:
    """A direct delta from a state to the newest; None when it cannot be rebuilt, or one delta leads there."""
    if start.digest is None:
        return None
    base, onward = way_to(residents, start.version, start.digest), way_onward(residents, start)
    digest = onward[-1].reaches.digest if len(onward) > 1 else None
    if not base or digest is None:
        return None
    artifacts = tuple(one.artifact for one in (*base, *onward))
    return Plan(artifacts, len(base), onward[-1].header.version, digest)


def is_due(snapshot: Resident, after: Sequence[Resident]) -> bool:
    """Whether what follows a snapshot, one by one, is to be folded."""
    return len(after) >= FOLD_VERSIONS or sum(one.length for one in after) > FOLD_RATIO * snapshot.length > 0


class WriteBudget:
    """Bytes an hour that folds may write. What was written is paid for by waiting; 0 allows none."""

    def __init__(self, bytes_per_hour: int) -> None:
        self._rate = bytes_per_hour / 3600
        self._free_at = float("-inf")

    def allows(self, now: float) -> bool:
        return self._rate > 0 and now >= self._free_at

    def spend(self, written: int, now: float) -> None:
        """So much was written just now."""
        if self._rate > 0:
            self._free_at = max(self._free_at, now) + written / self._rate

    def wait(self, seconds: float, now: float) -> None:
        """Something failed: not again before that."""
        self._free_at = max(self._free_at, now + seconds)
