"""Who makes a published snapshot again out of what it stores, when, and what it has to fetch for that. Pure.

A snapshot that the host folds leads to a version that every member has already: nobody fetches it, and the first
newcomer would find it at the host alone. But its bytes follow from the state (squash.Snapshot): a member that stores a
chain to that version makes them itself, and each segment is checked against the BLAKE3 in its signed page. Only the
pages have to come from elsewhere; a segment brings the page that covers it.

    turn_of   members take turns in rendezvous order, so that all of them agree without a word
    probes    segments whose pages are still missing, one for each page as it is largest
"""

from __future__ import annotations

from collections.abc import Collection

from blake3 import blake3

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.types import ArtifactId, PeerId
from aurora_p2p.wire.limits import MAX_PAGE_HASHES

SEEDERS = 3
"""Holders that a newcomer should find: one may be away, one slow."""
SEEDER_SHARE = 8
"""And one member in so many: of its 24 neighbours three hold the snapshot then, none in 4 % of the cases."""
TURN_SECONDS = 300.0
"""The next in order step in when the first have not: they are paused, have no room, or left."""
HELD_SHARE = 16
"""Who announced more than this part of the segments holds, or will hold, all of them; a probe is less."""
LEAST_PROBES = 4
"""Probes that are worth it however small the artifact is."""


def turn_of(me: PeerId, members: Collection[PeerId], artifact: ArtifactId) -> int:
    """0 for the first to rebuild an artifact, 1 for those who step in for them, and so on. me: one of the members."""
    ranked = sorted(members, key=lambda peer: blake3(artifact + peer.encode()).digest())
    return ranked.index(me) // max(SEEDERS, -(-len(ranked) // SEEDER_SHARE))


def is_seeded(holders: Collection[int], segments: int) -> bool:
    """Whether enough peers hold an artifact. holders: how many of its segments each of them announced."""
    return sum(held > segments // HELD_SHARE for held in holders) >= SEEDERS


def probes(manifest: Manifest) -> set[int]:
    """Segments to ask for next: the first of each stretch without a page, and every MAX_PAGE_HASHES on.

    Empty before the final page, and once all pages are known.
    """
    found, due = set[int](), 0
    for index in range(manifest.final.segments if manifest.final else 0):
        if manifest.expected(index) is not None:
            due = index + 1
        elif index >= due:
            found.add(index)
            due = index + MAX_PAGE_HASHES
    return found


def most_probes(segments: int) -> int:
    """Beyond so many the pages are too small, and making the artifact saves too little."""
    return max(LEAST_PROBES, segments // HELD_SHARE)
