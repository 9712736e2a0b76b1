"""Who may connect to us, and whom we dial: the roster and the hosts, without those we have banned."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from aurora_p2p.net.dialler import Dialler
from aurora_p2p.swarm.roster import RosterView
from aurora_p2p.types import PeerId
from aurora_p2p.wire.bulk import SetMembers


class Gate:
    """Sans-IO. Each change returns the SetMembers that the bulk child must be told."""

    def __init__(self, me: PeerId, rng: Random, local: Sequence[str]) -> None:
        self.dialler = Dialler(me, rng, local)
        self.bans: dict[PeerId, float] = {}
        """Banned peer -> when the ban ends."""
        self._roster: RosterView | None = None
        self._hosts: frozenset[PeerId] = frozenset()

    def trust(self, hosts: frozenset[PeerId], now: float) -> SetMembers:
        self._hosts = hosts
        return self.members(now)

    def admit(self, roster: RosterView, now: float) -> SetMembers:
        self._roster = roster
        return self.members(now)

    def ban(self, peer: PeerId, seconds: float, now: float) -> SetMembers:
        self.bans[peer] = now + seconds
        return self.members(now)

    def members(self, now: float) -> SetMembers:
        """Drops bans that have ended."""
        self.bans = {peer: until for peer, until in self.bans.items() if until > now}
        peers = self._roster.peers if self._roster else {}
        trusted = {peer: member for peer, member in peers.items() if peer not in self.bans}
        self.dialler.retarget(trusted, self._hosts, now)
        return SetMembers(tuple(sorted({*trusted, *(self._hosts - self.bans.keys())})))

    def next_deadline(self) -> float:
        return min(self.dialler.next_deadline(), *self.bans.values(), float("inf"))
