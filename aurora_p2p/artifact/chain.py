"""What to fetch and apply next: a chain of deltas, or a snapshot and the deltas after it. Pure.

A delta applies only onto the very checkpoint it names: base version, manifest hash and state digest all match. While
an artifact's final page is unknown, the version alone joins its successor to it; the plan is made again when the final
page is there, and the engine refuses a base whose digest differs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from aurora_p2p.types import ArtifactId, ManifestHash, StateDigest, Version
from aurora_p2p.wire.manifest import Header

SNAPSHOT_RATIO = 0.5
"""A chain that costs more than this share of the snapshot's route is not worth decoding."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One version of the weights. `manifest` and `digest` are None while its final page is unknown."""

    version: Version
    manifest: ManifestHash | None
    digest: StateDigest | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A published artifact: its header, where it leads, and the bytes still to be fetched (0 once complete)."""

    artifact: ArtifactId
    header: Header
    reaches: Checkpoint
    missing_bytes: int


def catch_up(held: Checkpoint | None, known: Collection[Candidate]) -> tuple[Candidate, ...]:
    """The artifacts to apply in order from `held` (None: nothing yet); empty when there is nothing better.

    The route that reaches the higher version wins; between equals the deltas, unless they cost more than
    SNAPSHOT_RATIO of the bytes of the newest snapshot and the deltas after it.
    """
    chain = _continue(held, known) if held else ()
    floor = held.version if held else -1
    snapshots = [one for one in known if one.header.kind == "snapshot" and one.header.version > floor]
    if not snapshots:
        return chain
    snapshot = max(snapshots, key=_newest)
    route = (snapshot, *_continue(snapshot.reaches, known))
    if not chain or route[-1].header.version > chain[-1].header.version:
        return route
    return chain if _cost(chain) <= SNAPSHOT_RATIO * _cost(route) else route


def _continue(start: Checkpoint, known: Collection[Candidate]) -> tuple[Candidate, ...]:
    """The deltas onward from a checkpoint; of two on one base the one that leads further, then the later published."""
    route: list[Candidate] = []
    here = start
    while following := [one for one in known if _joins(here, one.header)]:
        best = max(following, key=_newest)
        route.append(best)
        here = best.reaches
    return tuple(route)


def _joins(here: Checkpoint, header: Header) -> bool:
    if header.kind != "delta" or header.base_version != here.version or header.version <= here.version:
        return False
    if here.manifest is None:
        return True
    return header.base_manifest == here.manifest and header.base_digest == here.digest


def _newest(one: Candidate) -> tuple[int, int]:
    return one.header.version, one.header.seq


def _cost(route: Iterable[Candidate]) -> int:
    return sum(one.missing_bytes for one in route)
