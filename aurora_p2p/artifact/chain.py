"""What to fetch and apply next: a chain of deltas, or a snapshot and the deltas after it. Pure.

A delta applies only onto the very checkpoint it names: base version and state digest match. Which artifact led there
does not matter: a delta, a squashed delta and a snapshot may all reach one version, each under a manifest hash of its
own, and the digest says that they are the same bits. While an artifact's final page is unknown, the version alone joins
its successor to it; the plan is made again when the final page is there, and the engine refuses a base whose digest
differs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from aurora_p2p.types import ArtifactId, ManifestHash, StateDigest, Version
from aurora_p2p.wire.manifest import Header

SNAPSHOT_RATIO = 0.5
"""Deltas that cost more than this share of a snapshot's route are not worth decoding."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One version of the weights. `manifest` and `digest` are None while its final page is unknown.

    manifest: of the artifact by which it was reached; another artifact may reach the same checkpoint.
    """

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


@dataclass(frozen=True, slots=True)
class _Way:
    """How one gets to a checkpoint: the last artifact, and the way to its base. last: None where one stands already."""

    last: Candidate | None
    before: _Way | None = None
    missing: int = 0
    steps: int = 0

    def onward(self, one: Candidate) -> _Way:
        return _Way(one, self, self.missing + one.missing_bytes, self.steps + 1)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Higher is better: fewer missing bytes, fewer artifacts, later published."""
        return -self.missing, -self.steps, self.last.header.seq if self.last else 0

    @property
    def version(self) -> int:
        """Where it leads; -1 when there is nothing to apply."""
        return self.last.header.version if self.last else -1

    def route(self) -> tuple[Candidate, ...]:
        """Its artifacts in order."""
        found: list[Candidate] = []
        way: _Way | None = self
        while way is not None and way.last is not None:
            found.append(way.last)
            way = way.before
        return tuple(reversed(found))


def catch_up(held: Checkpoint | None, known: Collection[Candidate]) -> tuple[Candidate, ...]:
    """The artifacts to apply in order from `held` (None: nothing yet); empty when there is nothing better.

    The route that reaches the higher version wins, between equals the deltas, unless they cost more than SNAPSHOT_RATIO
    of the cheapest route that begins with a snapshot. Of several ways over deltas, or from several snapshots, the one
    with the fewest missing bytes; then the one with the fewest artifacts, then the later published.
    """
    deltas, nowhere = _by_base(known), _Way(None)
    floor = held.version if held else -1
    snapshots = [one for one in known if one.header.kind == "snapshot" and one.header.version > floor]
    chain = _furthest(deltas, [(held, nowhere)] if held else [])
    route = _furthest(deltas, [(one.reaches, nowhere.onward(one)) for one in snapshots])
    if route.version != chain.version:
        return max(chain, route, key=lambda way: way.version).route()
    return (chain if chain.missing <= SNAPSHOT_RATIO * route.missing else route).route()


def _by_base(known: Collection[Candidate]) -> dict[Version, list[Candidate]]:
    """The deltas by the version that they start from."""
    deltas: defaultdict[Version, list[Candidate]] = defaultdict(list)
    for one in known:
        if one.header.kind == "delta" and one.header.version > one.header.base_version:
            deltas[one.header.base_version].append(one)
    return deltas


def _furthest(deltas: Mapping[Version, list[Candidate]], starts: Iterable[tuple[Checkpoint, _Way]]) -> _Way:
    """The best way to the highest version that can be reached.

    A delta leads to a higher version, so taking checkpoints by version finishes each before it is left. Checkpoints of
    one version that differ in their digest are left each on its own.
    """
    best: dict[tuple[Version, StateDigest | None], _Way] = {}

    def arrive(there: Checkpoint, way: _Way) -> None:
        key = there.version, there.digest
        if key not in best or way.rank > best[key].rank:
            best[key] = way
            ahead.add(key)

    ahead: set[tuple[Version, StateDigest | None]] = set()
    for there, way in starts:
        arrive(there, way)
    while ahead:
        here = min(ahead, key=lambda key: key[0])
        ahead.remove(here)
        version, digest = here
        for one in deltas.get(version, ()):
            if digest in (None, one.header.base_digest):
                arrive(one.reaches, best[here].onward(one))
    return max(best.values(), key=lambda way: (way.version, *way.rank), default=_Way(None))
