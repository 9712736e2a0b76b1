"""Which segments a node asks for across an ocean, and when: pull repair of the pushes of gateway.py.

A segment crosses into a region once, as a push to its gateway there, and the others pull it inside. What is told across
but does not appear here is asked for by turns, in the segment's order of members (geography.py): the first two at
the deadline, each further one half a deadline later, so that a lost push costs one more copy and not one per node:

    unheard --a peer across announces it--> HEARD --our turn, and it is late--> open
    HEARD, open --somebody of our region who behaves announces it, or we store it--> inside
    inside --its last holder here is lost, or lets us wait--> HEARD

The first in the order waits for its own push only. For the others it is late only when its gateway is: the wait begins
anew with each segment that the gateway brings in, because where the crossing itself is slow every push is, and copies
would make it slower; until the rest of the region has brought in LATE_ROUNDS times as many as it has members, or
nothing at all. The deadline itself is fixed: one that learned from delays would grow with them. Where the gateway is
one that we know to be bad, its push is as good as lost: the next in the order asks at once.

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
LAG_FACTOR = 3.0
MIN_LEAD = 0.2
LAG_WEIGHT = 0.2
"""While a peer of our region is bad, a push that is so many times later than others were may have gone to it: then half
of the deadline at most is waited. What we asked for ourselves is no measure of that."""
MAX_TURNS = 6
"""Turns are given to so many; whoever comes later in the order shares the last."""


@dataclass(slots=True)
class Heard:
    """at: when a peer across first announced it; brought: how many the region had by then; source: that peer."""

    at: float
    brought: int
    source: PeerId
    deadline: float
    look_at: float
    """Before then nothing that happens makes it ours to ask for, unless a peer turns out to be bad."""


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
        self.inside = 0
        """Somebody here who behaves has these, or we."""
        self._brought = 0
        self._brought_at = float("-inf")
        self._by: dict[PeerId, tuple[int, float]] = {}
        """Who brought segments in: how many the region had after the last one, and when that was."""
        self._due = float("-inf")
        self._bad: frozenset[PeerId] = frozenset()
        self._lag: float | None = None
        """From hearing of a segment until somebody here has it by a push, as a moving average."""
        self._spoilt = 0
        """Somebody here who turned out to be bad has, or had, these: nobody pushes them here any more."""

    def hear(self, peer: PeerId, mask: int, deadline: float, now: float) -> None:
        """A peer across announced these."""
        for index in bits(mask & ~self.inside):
            if index not in self.heard:
                look_at = now if self._bad or self._spoilt >> index & 1 else now + deadline
                self.heard[index] = Heard(now, self._brought, peer, deadline, look_at)
                self._due = min(self._due, look_at)

    def spoil(self, mask: int, now: float) -> None:
        """A peer of our region who lets us wait, or sent bad bytes, announced these."""
        self._spoilt |= mask
        self._due = min(self._due, now)
        for index in bits(mask):
            if index in self.heard:
                self.heard[index].look_at = min(self.heard[index].look_at, now)

    def bring(self, peer: PeerId, mask: int, now: float) -> None:
        """A peer of our region announced these, or we stored them ourselves."""
        new = mask & ~self.inside
        if not new:
            return
        pushed, self.inside = new & ~self.open, self.inside | new
        self.open &= ~new
        self._brought += new.bit_count()
        self._brought_at = now
        self._by[peer] = (self._brought, now)
        for index in bits(new):
            heard = self.heard.pop(index, None)
            if heard is not None and pushed >> index & 1:
                lag = now - heard.at
                self._lag = lag if self._lag is None else self._lag + LAG_WEIGHT * (lag - self._lag)

    def lose(self, mask: int, across: dict[PeerId, int], deadline: float, now: float) -> None:
        """Nobody here has these any more. across: what the peers across hold."""
        lost = mask & self.inside
        self.spoil(lost, now)
        if lost:
            self.inside &= ~lost
            for peer, held in across.items():
                self.hear(peer, held & lost, deadline, now)

    def expire(
        self, here: list[PeerId], bad: frozenset[PeerId], artifact: ArtifactId, geography: Geography, now: float
    ) -> None:
        """Open what is late and our turn. here: the linked peers of our region that behave; bad: those who do not."""
        if now < self._due:
            return
        self._due = float("inf")
        anew, self._bad = bad != self._bad, bad
        members = [geography.me, *here]
        for index, heard in self.heard.items():
            if self.open >> index & 1:
                continue
            if anew or heard.look_at <= now:
                order = geography.order(artifact, index, [*members, *bad])
                lost = bool(order and order[0] in bad) or bool(self._spoilt >> index & 1)
                heard.look_at = self._turn_at(heard, [p for p in order if p not in bad], geography.me, lost)
            if heard.look_at <= now:
                self.open |= 1 << index
            else:
                self._due = min(self._due, heard.look_at)

    def next_deadline(self) -> float:
        return self._due

    def _lead(self, deadline: float) -> float:
        """How long the first in the order waits for its push."""
        if not self._bad or self._lag is None:
            return deadline
        return min(max(MIN_LEAD, LAG_FACTOR * self._lag), deadline / 2)

    def _turn_at(self, heard: Heard, order: list[PeerId], me: PeerId, lost: bool) -> float:
        """When we may ask. order: who behaves and could be the gateway; lost: no push is to be waited for."""
        turn = min(order.index(me) if me in order else MAX_TURNS, MAX_TURNS)
        if lost:
            return heard.at + turn * heard.deadline / 2
        if turn == 0:
            return heard.at + self._lead(heard.deadline)
        brought, at = self._by.get(order[0], (0, float("-inf"))) if order else (0, float("-inf"))
        since = max(heard.at, at)
        if self._brought - max(heard.brought, brought) < LATE_ROUNDS * (len(order) + (me not in order)):
            since = max(since, self._brought_at)
        return max(heard.at + heard.deadline, since + heard.deadline * (1 + turn) / 2)
