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
        holding.crossing.bring(link.peer, mask, now)
    elif region is not None:
        holding.forwarding.reached(region, mask)
        holding.crossing.hear(link.peer, mask & ~holding.fetch.have, deadline_for(link.latency), now)


def stored(table: Table, holding: Holding, index: int, now: float) -> None:
    """A segment is ours: our region has it, and if we are its first holder, the others shall."""
    geography = table.geography
    holding.crossing.bring(geography.me, 1 << index, now)
    if holding.firsts >> index & 1:
        holding.forwarding.first_held(index, geography.abroad)


def look_around(table: Table, holding: Holding, now: float) -> None:
    """Peers came, went or fell silent: what nobody here holds, or only who does not answer, crosses again."""
    fetch = holding.fetch
    if table.geography.home is not None and not holding.complete:
        lost = ~(fetch.have | fetch.verifying)
        for peer in near(table, holding):
            if not table.links[peer].snubbed:
                lost &= ~holding.peers.counted(peer)
        holding.crossing.lose(lost, holding.peers.beyond(), MIN_DEADLINE / 2, now)


def near(table: Table, holding: Holding) -> list[PeerId]:
    """The linked members of our region that behave."""
    home, links = table.geography.home, table.links
    return [peer for peer in links if table.geography.region_of(peer) == home and peer not in holding.fetch.excluded]
