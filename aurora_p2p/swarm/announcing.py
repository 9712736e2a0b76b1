"""What we tell peers that we have: offers of artifacts, and segments that became servable, batched.

A batch waits BATCH_SECONDS, so that a burst of segments is one frame. Nothing is announced that cannot be served.
"""

from __future__ import annotations

from aurora_p2p.swarm.bitset import bits
from aurora_p2p.swarm.catalog import Holding
from aurora_p2p.swarm.link import Link
from aurora_p2p.swarm.table import Table
from aurora_p2p.swarm.uplink import Uplink
from aurora_p2p.types import ArtifactId
from aurora_p2p.wire.exchange import Bitfield, Have, Offer

BATCH_SECONDS = 0.01
"""Newly servable segments are announced together."""
ORIGIN_BATCH_SECONDS = 0.5
"""An origin announces itself as the last resort only: by then most peers hold the segment and need not be told."""
HAVE_BATCH = 4096
"""Segments of one Have (wire.exchange)."""


class Announcer:
    def __init__(self, table: Table, uplink: Uplink) -> None:
        self._table, self._uplink = table, uplink
        self._news: dict[ArtifactId, int] = {}
        """Servable segments not announced yet."""
        self._flush_at = float("inf")

    def next_deadline(self) -> float:
        return self._flush_at

    def offer_to_all(self, holding: Holding) -> None:
        for link in self._table.links.values():
            self.offer(link, holding)

    def offer(self, link: Link, holding: Holding) -> None:
        """Tell a peer of the artifact, unless it knows as much as we do."""
        final = holding.manifest.signed_final
        if link.offers.get(holding.artifact, -1) < int(final is not None):
            link.offers[holding.artifact] = final is not None
            self._table.send(link, Offer(holding.manifest.signed_header, final))

    def introduce(self, link: Link) -> None:
        """Tell a new link of everything, newest first."""
        for holding in sorted(self._table.catalog.artifacts.values(), key=lambda h: -h.seq):
            self.offer(link, holding)
            servable = holding.servable & ~self._news.get(holding.artifact, 0)
            if servable:
                bitmap = servable.to_bytes(-(-servable.bit_length() // 8), "little")
                self._table.send(link, Bitfield(holding.artifact, bitmap))

    def note(self, holding: Holding, mask: int, now: float) -> None:
        """Announce these soon, together with others."""
        if mask:
            self._news[holding.artifact] = self._news.get(holding.artifact, 0) | mask
            wait = ORIGIN_BATCH_SECONDS if holding.seeder else BATCH_SECONDS
            self._flush_at = min(self._flush_at, now + wait)

    def forget(self, artifact: ArtifactId) -> None:
        self._news.pop(artifact, None)

    def expire(self, now: float) -> None:
        """Tell every peer what it does not hold itself, and hosts everything: they watch who passes segments on."""
        if self._flush_at > now:
            return
        self._flush_at = float("inf")
        news, self._news = self._news, {}
        queue = self._uplink.queued
        for artifact, mask in news.items():
            holding = self._table.catalog.artifacts[artifact]
            mask &= holding.servable
            for link in self._table.links.values():
                known = 0 if link.is_host else holding.peers.held.get(link.peer, 0)
                indices = tuple(bits(mask & ~known))
                for start in range(0, len(indices), HAVE_BATCH):
                    self._table.send(link, Have(artifact, indices[start : start + HAVE_BATCH], queue))
