"""What a store keeps: what is referred to, then what is young. Pure.

    restart set      the shortest complete way to the newest version: a snapshot, a squash, the deltas after it
    ahead            what leads further than the restart set does: a piece that is still missing will join it
    sources          everything else: what peers that lag, and squashes for them, start from

The restart set and what is ahead are never given up. Sources are kept for a while (`expired`), and less long when the
quota is short (`spare`): without them a laggard takes the snapshot, which costs bytes and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from aurora_p2p.artifact.chain import Candidate, Checkpoint, catch_up
from aurora_p2p.types import ArtifactId, ManifestHash, StateDigest
from aurora_p2p.wire.manifest import Header

RETAIN_ARTIFACTS = 8
RETAIN_SECONDS = 600.0
"""Peers that lag less than this catch up from us by deltas (swarm.md: max(8 artifacts, 10 min) + one base)."""
RETAIN_MOST = 64
"""But no more than these by age: with a version a second the rest would be hundreds, which every restart reads and
every new link hears of. A peer that lags further takes the snapshot, which is then the shorter way as well."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A complete artifact of a store. digest: of the state it leads to; since: CLOCK_BOOTTIME when it was complete."""

    artifact: ArtifactId
    header: Header
    manifest: ManifestHash
    digest: StateDigest
    length: int
    since: float


def restart_route(residents: Collection[Resident]) -> tuple[Candidate, ...]:
    """The artifacts that a restart loads, in order; empty while there is no snapshot."""
    return catch_up(None, [candidate_of(one) for one in residents])


def candidate_of(one: Resident) -> Candidate:
    return Candidate(one.artifact, one.header, Checkpoint(one.header.version, one.manifest, one.digest), 0)


def expired(residents: Collection[Resident], *, now: float) -> list[ArtifactId]:
    """Sources past retention, oldest first."""
    ranked = sorted(residents, key=lambda one: one.header.seq, reverse=True)
    sources = {one.artifact for one in _sources(residents)}
    old = [
        one.artifact
        for newer, one in enumerate(ranked)
        if one.artifact in sources
        and newer >= RETAIN_ARTIFACTS
        and (newer >= RETAIN_MOST or now - one.since >= RETAIN_SECONDS)
    ]
    return old[::-1]


def spare(residents: Collection[Resident]) -> list[Resident]:
    """What can be given up for room, in that order: all sources, oldest first."""
    return sorted(_sources(residents), key=lambda one: one.header.seq)


def _sources(residents: Collection[Resident]) -> list[Resident]:
    route = restart_route(residents)
    if not route:
        return []
    needed, end = {one.artifact for one in route}, route[-1].header.version
    return [one for one in residents if one.artifact not in needed and one.header.version <= end]
