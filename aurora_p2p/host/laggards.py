"""For whom a squashed delta is worth making: members that stand still some versions behind. Sans-IO.

    member     CURRENT --newest moves on--> BEHIND --STILL_SECONDS at one version--> a laggard

A node that merely commits between two leases, or fetches a chain at speed, moves on and is none. Nothing is decided by
a report but what the host makes at its own pace: a node that lies costs one squash, rarely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from aurora_p2p.types import PeerId, Version

LEAST_BEHIND = 3
"""Versions. The squash of two costs four fifths of them, of three two thirds: below, it does not pay for being made."""
STILL_SECONDS = 3.0
"""At one version: three reports (node/reporting.py) of a node that does not get on."""
EVERY_VERSIONS = 4
"""Between two squashes: laggards that are a version apart are served by one and a delta."""
WIDER = 2
"""A second squash from one base waits until it spans so many times as much: a node that is paused for a day costs a
handful, not one every EVERY_VERSIONS."""
MAX_BASES = 256
"""Bases remembered."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a member last said: its newest version, decoded or served, and when it said so (CLOCK_BOOTTIME)."""

    version: Version
    at: float


class Laggards:
    """Feed `look` with what members say; it names the base that most of them wait at."""

    def __init__(self) -> None:
        self._since: dict[PeerId, tuple[Version, float]] = {}
        self._spans: dict[Version, int] = {}
        self._last = Version(-1)

    def look(self, standings: Mapping[PeerId, Standing], newest: Version, *, now: float) -> list[Version]:
        """Versions to squash from, the one most wait at first; empty while there is no need, or it is too early."""
        self._since = {
            peer: self._since.get(peer, (one.version, now))
            if self._since.get(peer, (one.version, now))[0] == one.version
            else (one.version, now)
            for peer, one in standings.items()
            if 0 <= one.version <= newest - LEAST_BEHIND
        }
        if newest - self._last < EVERY_VERSIONS:
            return []
        waiting = Counter(version for version, since in self._since.values() if now - since >= STILL_SECONDS)
        wide = [one for one in waiting if newest - one >= WIDER * self._spans.get(one, 0)]
        return sorted(wide, key=lambda version: (-waiting[version], version))

    def made(self, base: Version, reached: Version) -> None:
        """A squash is out, or was tried in vain: not again at once."""
        self._last = max(self._last, reached)
        self._spans.pop(base, None)
        self._spans[base] = reached - base
        while len(self._spans) > MAX_BASES:
            del self._spans[next(iter(self._spans))]
