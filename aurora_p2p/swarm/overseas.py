"""Word of segments here and abroad, passed on to crossing.py (what to ask for) and forwarding.py (what to push)."""

from __future__ import annotations

from aurora_p2p.swarm.catalog import Holding
from aurora_p2p.swarm.crossing import MIN_DEADLINE, deadline_for
from aurora_p2p.swarm.link import Link
from aurora_p2p.swarm.table import Table
from aurora_p2p.types import PeerId


def heard(table: Table, link: Link, holding: Holding, mask: int, now: float) -> None:
    """A member announced segments that are new for it."""
    geography = table.geography
    region = geography.region_of(link.peer)
    if not geography.is_across(link.peer):
        if link.silent:
            holding.crossing.spoil(mask, now)
        else:
            holding.crossing.bring(link.peer, mask, now)
    elif region is not None:
        if not link.doubted:
            holding.forwarding.reached(region, mask)
        holding.crossing.hear(link.peer, mask & ~holding.fetch.have, deadline_for(link.latency), now)


def asked_for(table: Table, link: Link, holding: Holding, index: int) -> None:
    """A member across asks us for what we pushed to another one there: that one does not pass it on, it seems."""
    region = table.geography.region_of(link.peer)
    for other in table.links.values():
        pushed = other is not link and holding.forwarding.was_pushed(other.peer) >> index & 1
        if pushed and table.geography.region_of(other.peer) == region:
            other.complaints += 1


def _is_there(table: Table, holding: Holding, region: int, index: int) -> bool:
    """Whether somebody there announced it of whom the others have it."""
    holders = [link for link in table.links.values() if holding.peers.held.get(link.peer, 0) >> index & 1]
    return any(not link.doubted for link in holders if table.geography.region_of(link.peer) == region)


def stored(table: Table, holding: Holding, index: int, now: float) -> None:
    """A segment is ours: our region has it, and if we are its first holder, the others shall."""
    geography = table.geography
    holding.crossing.bring(geography.me, 1 << index, now)
    if holding.firsts >> index & 1:
        away = [region for region in geography.abroad if not _is_there(table, holding, region, index)]
        holding.forwarding.first_held(index, away)


def look_around(table: Table, holding: Holding, now: float) -> None:
    """Peers came, went or fell silent: what nobody here holds, or only who does not answer, crosses again."""
    fetch = holding.fetch
    if table.geography.home is not None and not holding.complete:
        lost = ~(fetch.have | fetch.verifying)
        for peer in near(table, holding):
            lost &= ~holding.peers.counted(peer)
        holding.crossing.lose(lost, holding.peers.beyond(), MIN_DEADLINE / 2, now)


def ask_abroad(table: Table, holding: Holding, now: float) -> None:
    """Open to be asked across what is late."""
    if holding.crossing.next_deadline() <= now:
        bad = frozenset(_here(table)) - set(near(table, holding)) | table.strikes.banned(now)
        local = frozenset(peer for peer in bad if table.geography.region_of(peer) == table.geography.home)
        holding.crossing.expire(near(table, holding), local, holding.artifact, table.geography, now)


def delivers_again(table: Table, link: Link, now: float) -> None:
    """A peer of our region has ended its silence: what it has is here."""
    if not table.geography.is_across(link.peer):
        for holding in table.catalog.artifacts.values():
            if not holding.complete:
                holding.crossing.bring(link.peer, holding.peers.counted(link.peer), now)


def near(table: Table, holding: Holding) -> list[PeerId]:
    """The linked members of our region that behave."""
    return [peer for peer in _here(table) if not table.links[peer].silent and peer not in holding.fetch.excluded]


def _here(table: Table) -> list[PeerId]:
    return [peer for peer in table.links if table.geography.region_of(peer) == table.geography.home]
