"""Which segments a node asks for across an ocean, and when: pull repair of the pushes of gateway.py.

A segment crosses into a region once, as a push to its gateway there, and the others pull it inside. What is told across
but does not appear here is asked for by turns, in the segment's order of members (geography.py): the first two at
the deadline, each further one half a deadline later, so that a lost push costs one more copy and not one per node:

    unheard --a peer across announces it--> HEARD --our turn, and it is late--> open
    HEARD, open --somebody of our region announces it, or we store it--> inside
    inside --its last holder here is lost--> HEARD

The first in the order waits for its own push only. For the others it is late only when its gateway is: the wait begins
anew with each segment that the gateway brings in, because where the crossing itself is slow every push is, and copies
would make it slower; until the rest of the region has brought in LATE_ROUNDS times as many as it has members, or
nothing at all. The deadline itself is fixed: one that learned from delays would grow with them.

Sans-IO. It knows nothing of catch-up (asked of anybody) nor of nodes alone in their region (who ask at once).
"""

from __future__ import annotations

from dataclasses import dataclass

from aurora_p2p.swarm.bitset import bits
from aurora_p2p.swarm.geography import Geography
from aurora_p2p.types import ArtifactId, PeerId

MIN_DEADLINE = 0.6
MAX_DEADLINE = 1.0
"""Seconds that a push may take, queue and ocean included. In simulations an adaptive deadline was 2.8 to 20 times
slower: each repair delayed the pushes."""
ROUND_TRIPS = 8
"""Within these bounds: a push takes half a round trip, its announcement to us as much, and TCP that was idle five more
for a segment. With half of that, half of the repairs brought what was on its way."""
LATE_ROUNDS = 2
"""A gateway that brought nothing while everybody else had two turns is late, however slow the crossing is."""
MAX_TURNS = 6
"""Turns are given to so many; whoever comes later in the order shares the last."""


@dataclass(slots=True)
class Heard:
    """at: when a peer across first announced it; brought: how many the region had by then; source: that peer."""

    at: float
    brought: int
    source: PeerId
    deadline: float


def deadline_for(latency: float) -> float:
    """Seconds that a push may take from a peer who answers after `latency`."""
    return min(max(MIN_DEADLINE, ROUND_TRIPS * latency), MAX_DEADLINE)


class Crossing:
    """One artifact on its way into one region, as one of its nodes sees it."""

    def __init__(self) -> None:
        self.open = 0
        """These may be asked for across."""
        self.heard: dict[int, Heard] = {}
        """Announced across, and by nobody here; open ones included."""
        self._inside = 0
        self._brought = 0
        self._brought_at = float("-inf")
        self._by: dict[PeerId, tuple[int, float]] = {}
        """Who brought segments in: how many the region had after the last one, and when that was."""
        self._due = float("inf")

    def hear(self, peer: PeerId, mask: int, deadline: float, now: float) -> None:
        """A peer across announced these."""
        for index in bits(mask & ~self._inside):
            if index not in self.heard:
                self.heard[index] = Heard(now, self._brought, peer, deadline)
                self._due = min(self._due, now + deadline)

    def bring(self, peer: PeerId, mask: int, now: float) -> None:
        """A peer of our region announced these, or we stored them ourselves."""
        new = mask & ~self._inside
        if not new:
            return
        self._inside |= new
        self.open &= ~new
        self._brought += new.bit_count()
        self._brought_at = now
        self._by[peer] = (self._brought, now)
        for index in bits(new):
            self.heard.pop(index, None)

    def lose(self, mask: int, across: dict[PeerId, int], deadline: float, now: float) -> None:
        """Nobody here has these any more. across: what the peers across hold."""
        lost = mask & self._inside
        if lost:
            self._inside &= ~lost
            for peer, held in across.items():
                self.hear(peer, held & lost, deadline, now)

    def expire(self, here: list[PeerId], artifact: ArtifactId, geography: Geography, now: float) -> None:
        """Open what is late and our turn. here: the linked peers of our region that behave."""
        if now < self._due:
            return
        self._due = float("inf")
        members = [geography.me, *here]
        for index, heard in self.heard.items():
            if self.open >> index & 1 or self._later(heard.at + heard.deadline, now):
                continue
            order = geography.order(artifact, index, members)
            turn = order.index(geography.me) if geography.me in order else MAX_TURNS
            if turn == 0 or not self._later(self._turn_at(heard, order[0], turn, len(members)), now):
                self.open |= 1 << index

    def next_deadline(self) -> float:
        return self._due

    def _turn_at(self, heard: Heard, gateway: PeerId, turn: int, members: int) -> float:
        wait = heard.deadline * (1 + min(turn, MAX_TURNS)) / 2
        brought, at = self._by.get(gateway, (0, float("-inf")))
        since = max(heard.at, at)
        if self._brought - max(heard.brought, brought) < LATE_ROUNDS * members:
            since = max(since, self._brought_at)
        return since + wait

    def _later(self, due: float, now: float) -> bool:
        if due > now:
            self._due = min(self._due, due)
        return due > now
