"""Rosters of a simulated swarm, as its admit key would sign them, and whom each node then dials.

The neighbours are chosen by the rule of the driver (swarm/neighbours.py). Behind NAT means: no address in the record,
so nobody dials it; two such nodes have no link.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.swarm.neighbours import Neighbourhood
from aurora_p2p.swarm.roster import RosterView, open_roster
from aurora_p2p.types import Epoch, Generation, PeerId, SwarmId
from aurora_p2p.wire.signed import Signed, seal
from aurora_p2p.wire.trust import Member, PeerRecord, Roster

if TYPE_CHECKING:
    from aurora_p2p.testing.node import Node

EVERYWHERE = ("0.0.0.0/0",)
"""No subnet quotas, as in a demo or a lab."""


class Membership:
    """Signs one roster after the other; remembers each node's neighbourhood."""

    def __init__(self, swarm: SwarmId, admit: Identity) -> None:
        self.view: RosterView | None = None
        self._swarm, self._admit = swarm, admit
        self._records: dict[PeerId, Signed] = {}
        self._hoods: dict[PeerId, Neighbourhood] = {}

    def seal(self, nodes: Iterable[Node]) -> RosterView:
        """The next roster, of these nodes."""
        members = [Member(self._record(node), node.spec.region, node.spec.probation) for node in nodes]
        epoch = Epoch(self.view.epoch + 1 if self.view else 1)
        signed = seal(self._admit, Roster(self._swarm, Generation(0), epoch, tuple(members)))
        self.view = open_roster(signed, swarm=self._swarm, admit=self._admit.peer, newer_than=self.view)
        return self.view

    def dials(self, node: Node, roster: RosterView, hosts: frozenset[PeerId], now: float) -> tuple[PeerId, ...]:
        """Whom this node wants a link to."""
        hood = self._hoods.get(node.peer)
        if hood is None:
            hood = self._hoods[node.peer] = Neighbourhood(node.peer, Random(node.rng.random()), EVERYWHERE)
        peers = {peer: member for peer, member in roster.peers.items() if peer == node.peer or member.record.bulk}
        hood.update(peers, hosts, now)
        return hood.chosen

    def _record(self, node: Node) -> Signed:
        if node.peer not in self._records:
            number = len(self._records)
            address = f"198.18.{number // 250}.{1 + number % 250}:4001"
            bulk = () if node.spec.nat else (address,)
            record = PeerRecord(self._swarm, node.peer, 1, (), bulk, node.spec.up_kbps)
            self._records[node.peer] = seal(node.identity, record)
        return self._records[node.peer]


def reachable(a: Node, b: Node) -> bool:
    """Whether one of the two can dial the other."""
    return not (a.spec.nat and b.spec.nat)


def pairs(wanted: Mapping[PeerId, Iterable[PeerId]]) -> list[tuple[PeerId, PeerId]]:
    """Every link that one end wants, once, in a fixed order."""
    return sorted({(min(a, b), max(a, b)) for a, others in wanted.items() for b in others})
