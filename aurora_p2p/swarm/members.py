"""Whose links are kept: members and hosts that are not banned. What goes with a link when it goes."""

from __future__ import annotations

from aurora_p2p.crypto.sign import WIRE_MIN, WIRE_VERSION
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.announcing import Announcer
from aurora_p2p.swarm.link import Link
from aurora_p2p.swarm.overseas import look_around
from aurora_p2p.swarm.roster import RosterView
from aurora_p2p.swarm.table import Table
from aurora_p2p.types import Epoch, PeerId
from aurora_p2p.wire.exchange import Hello

ENOUGH_NEAR = 0.75
MANY_NEAR = 8
"""Whoever is linked to less than this share of its region, but not to 6 of them, asks across oceans too."""


class Members:
    def __init__(self, table: Table, announcer: Announcer, up_kbps: int) -> None:
        self._table, self._links = table, table.links
        self._announcer, self._up_kbps = announcer, up_kbps
        self._roster: RosterView | None = None
        self.strikes = table.strikes
        self.linked_since = float("inf")
        """When the first link was up."""

    def roster(self, roster: RosterView, now: float) -> None:
        """A newer roster is in force; links to whoever left it are closed."""
        self._roster = roster
        self._table.geography.take(roster)
        for holding in self._table.catalog.artifacts.values():
            holding.peers.place()
            look_around(self._table, holding, now)
        for link in self._links.values():
            link.reach = self._table.geography.reach_of(link.peer)
        self._count_near()
        for peer in [peer for peer in self._links if not self._may_link(peer)]:
            self.close(peer, "it is not in the roster", now)

    def up(self, peer: PeerId, now: float) -> None:
        """A connection is open: greet, and tell what we have."""
        if peer in self._links:
            self.forget(peer, now)
        if self.strikes.is_banned(peer, now) or not self._may_link(peer):
            self._table.emit(ev.CloseLink(peer, "it is banned or not in the roster"))
            return
        self.linked_since = min(self.linked_since, now)
        link = self._links[peer] = Link(peer, peer in self._table.catalog.hosts)
        link.reach = self._table.geography.reach_of(peer)
        link.stalls = self.strikes.stalls(peer)
        self._count_near()
        epoch = self._roster.epoch if self._roster else Epoch(0)
        self._table.send(link, Hello(WIRE_MIN, WIRE_VERSION, epoch, self._up_kbps))
        self._announcer.introduce(link)

    def forget(self, peer: PeerId, now: float) -> None:
        """The link is gone, with what was asked of it and promised to it."""
        link = self._links.pop(peer, None)
        if link is None:
            return
        self.strikes.stall(peer, link.stalls)
        self._count_near()
        for holding in self._table.catalog.artifacts.values():
            holding.fetch.forget(peer)
            holding.forwarding.forget(peer, self._table.geography.region_of(peer))
            look_around(self._table, holding, now)
            if holding.seeder:
                self._announcer.note(holding, holding.seeder.forget(peer), now)

    def close(self, peer: PeerId, reason: str, now: float) -> None:
        self.forget(peer, now)
        self._table.emit(ev.CloseLink(peer, reason))

    def ban(self, peer: PeerId, reason: str, now: float) -> None:
        self._table.emit(ev.Banned(peer, self.strikes.ban(peer, now), reason))
        self.close(peer, reason, now)

    def _count_near(self) -> None:
        """Behind a NAT we have no link to others behind one: what the rest can send may be less than we can take."""
        geography = self._table.geography
        linked = sum(geography.region_of(peer) == geography.home for peer in self._links)
        self._table.sparse = linked < ENOUGH_NEAR * min(geography.neighbours, MANY_NEAR)

    def _may_link(self, peer: PeerId) -> bool:
        return self._roster is None or peer in self._roster or peer in self._table.catalog.hosts
