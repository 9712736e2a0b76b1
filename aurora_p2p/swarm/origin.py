"""Which segment the origin sends to whom first, and when it believes that the segment is out.

    PRODUCED -> SENDING(first holder) -> SENT -> CONFIRMED     a third party announced it
                                          └----> RESEED        nobody did in time: send it to another peer

Each segment leaves the origin once. A first holder is the peer with the smallest backlog (segments sent to it that no
third party has announced yet) for its weight: a slow or idle uploader accumulates backlog and is given less, which is
the weighting "by upload that the origin observed". The watch over a first holder restarts with everything it passes on,
so that a slow swarm is not mistaken for a dead one, up to PATIENCE times its length. With no third party (a swarm of
one) the holder's own announcement confirms. A segment that no linked peer holds any more is PRODUCED again.

Invariant: a produced segment is to be sent, on its way, under watch, or confirmed (and then nodes may ask us for it),
so that no false claim can strand it.
"""

from __future__ import annotations

from collections.abc import Mapping

from aurora_p2p.swarm.bitset import bits
from aurora_p2p.swarm.link import Link
from aurora_p2p.swarm.picker import Availability
from aurora_p2p.types import PeerId

WATCH_SECONDS = 0.3
MAX_WATCH_SECONDS = 30.0
WATCH_SEGMENTS = 4
"""The watch allows for this many segment times of the link to the first holder, besides two round trips."""
PATIENCE = 10
MAX_CREDIT = 64
"""Pushes a receiver may owe us room for (wire.exchange.Credit)."""
MIN_WEIGHT = 1 / 64
RECOVERY = 1.1
"""Growth of a lowered weight with each segment that the peer passed on."""
SCAN = 16
"""Unsent segments looked at when the first one has no possible receiver."""


def watch_seconds(link: Link, segment_bytes: int) -> float:
    """How long a first holder may take to pass a segment on."""
    expected = 2 * link.latency + WATCH_SEGMENTS * segment_bytes * link.outgoing.seconds_per_byte
    return min(WATCH_SECONDS + expected, MAX_WATCH_SECONDS)


class Seeder:
    """The origin's side of one artifact. `peers` is who announced what."""

    def __init__(self, peers: Availability, segment_bytes: int) -> None:
        self.peers = peers
        self.produced = 0
        self.finished = False
        """Everything is produced."""
        self.released = 0
        """Segments that ever left us: nobody can hold another one, whatever he claims."""
        self.confirmed = 0
        """Announced by the origin too: nodes may ask it for these when nobody else has them."""
        self.credit: dict[PeerId, int] = {}
        """Receivers (peers that lack some of it) and the pushes they will still take."""
        self._segment_bytes = segment_bytes
        self._sending: dict[int, PeerId] = {}
        self._sent: dict[PeerId, dict[int, float]] = {}
        """First holder -> segment -> start of its watch, oldest first."""
        self._begun: dict[int, float] = {}
        self._busy = 0
        self._reseed: dict[int, PeerId] = {}
        """Segments to send again, and who failed to pass them on."""
        self._progress: dict[PeerId, float] = {}
        self._total: dict[PeerId, int] = {}

    def produce(self, mask: int) -> int:
        """These can be sent. Returns the newly confirmed set: what peers hold already (a repaired segment)."""
        self.produced |= mask
        confirmed = mask & ~self.peers.levels[0] & ~self._busy & ~self.confirmed
        self.confirmed |= confirmed
        return confirmed

    def grant(self, peer: PeerId, segments: int) -> None:
        self.credit[peer] = min(self.credit.get(peer, 0) + segments, MAX_CREDIT)
        self._retire_receiver(peer)

    def finish(self) -> None:
        """Everything is produced: peers that hold it all are no receivers any more."""
        self.finished = True
        for peer in list(self.credit):
            self._retire_receiver(peer)

    def choose(self, links: Mapping[PeerId, Link], now: float) -> tuple[PeerId, int] | None:
        """The next (first holder, segment) among links with room in our uplink, or None."""
        ready = [peer for peer in links if self.credit.get(peer, 0) > 0]
        todo = self._todo() if ready else 0
        for _, index in zip(range(SCAN), bits(todo), strict=False):
            able = [peer for peer in ready if self._may_hold(peer, index)]
            if able:
                peer = min(able, key=lambda peer: self._load(links[peer], now))
                return peer, index
        return None

    def is_unsent(self, index: int) -> bool:
        """Nobody has it, and it is on its way to nobody: whoever gets it now is its first holder."""
        return bool(self._todo() >> index & 1)

    def is_on_its_way(self, peer: PeerId, index: int) -> bool:
        """It was sent, or is being sent, to this peer, who has not announced it yet."""
        return self._sending.get(index) == peer or index in self._sent.get(peer, ())

    def sending(self, peer: PeerId, index: int, now: float, *, pushed: bool) -> None:
        """The segment was handed to the driver for this first holder, at its request or within its credit."""
        self._sending[index] = peer
        self._begun[index] = now
        self._busy |= 1 << index
        self.released |= 1 << index
        self._reseed.pop(index, None)
        if pushed:
            self.credit[peer] -= 1
        self._total[peer] = self._total.get(peer, 0) + 1

    def unsent(self, peer: PeerId, index: int) -> None:
        """It did not leave, because the peer takes nothing or wants it no more: rather to another one."""
        if self._sending.get(index) == peer:
            del self._sending[index]
            self._busy &= ~(1 << index)
            self._reseed[index] = peer

    def sent(self, peer: PeerId, index: int, now: float) -> int:
        """It has left. Returns the newly confirmed set (others may hold it already)."""
        if self._sending.get(index) != peer:
            return 0
        del self._sending[index]
        self._sent.setdefault(peer, {})[index] = now
        if self._held_by_another(peer, index):
            return self._confirm(peer, index)
        return 0

    def announced(self, links: Mapping[PeerId, Link], peer: PeerId, new: int, now: float) -> int:
        """A peer announced segments that are new for it. Returns the newly confirmed set."""
        confirmed = new & self.produced & ~self._busy & ~self.confirmed
        for index, failed in list(self._reseed.items()):
            if failed == peer:
                confirmed &= ~(1 << index)
            elif confirmed >> index & 1:
                del self._reseed[index]
        for holder in list(self._sent):
            waiting = self._sent[holder]
            for index in [index for index in bits(new & self._busy) if index in waiting]:
                self._progress[holder] = now
                if holder != peer:
                    self._reward(links.get(holder), now - self._begun[index])
                elif index in waiting and self._third_party(peer, index) and not self._held_by_another(peer, index):
                    links[peer].answered(now - waiting.pop(index))
                    waiting[index] = now
                    continue
                confirmed |= self._confirm(holder, index)
        self.confirmed |= confirmed
        self._retire_receiver(peer)
        return confirmed

    def forget(self, peer: PeerId) -> int:
        """The link is gone. Returns the newly confirmed set: what others hold of the segments under watch."""
        self.credit.pop(peer, None)
        self._progress.pop(peer, None)
        self._total.pop(peer, None)
        confirmed = 0
        for index in [index for index, holder in self._sending.items() if holder == peer]:
            self.unsent(peer, index)
        for index in self._sent.pop(peer, {}):
            self._busy &= ~(1 << index)
            if self._held_by_another(peer, index):
                confirmed |= 1 << index & ~self.confirmed
        self.confirmed |= confirmed
        return confirmed

    def expire(self, links: Mapping[PeerId, Link], now: float) -> int:
        """Reseed what was not passed on in time. Returns the newly confirmed set."""
        confirmed = 0
        for peer, waiting in self._sent.items():
            overdue = [index for index, at in waiting.items() if self._deadline(links[peer], at) <= now]
            failed = False
            for index in overdue:
                if not self._third_party(peer, index) and self.peers.held.get(peer, 0) >> index & 1:
                    confirmed |= self._confirm(peer, index)
                    continue
                failed = failed or self._third_party(peer, index)
                del waiting[index]
                self._busy &= ~(1 << index)
                self._reseed[index] = peer
            if failed:
                link = links[peer]
                link.weight = max(link.weight / 2, MIN_WEIGHT)
                link.passing = max(link.passing or 0.0, watch_seconds(link, self._segment_bytes))
        return confirmed

    def next_deadline(self, links: Mapping[PeerId, Link]) -> float:
        return min(
            (
                self._deadline(links[peer], next(iter(waiting.values())))
                for peer, waiting in self._sent.items()
                if waiting
            ),
            default=float("inf"),
        )

    def _retire_receiver(self, peer: PeerId) -> None:
        if self.finished and not self.produced & ~self.peers.held.get(peer, 0):
            self.credit.pop(peer, None)

    def _todo(self) -> int:
        reseed = 0
        for index in self._reseed:
            reseed |= 1 << index
        return self.produced & ~self._busy & (self.peers.levels[0] | reseed)

    def _may_hold(self, peer: PeerId, index: int) -> bool:
        if self.peers.held.get(peer, 0) >> index & 1:
            return False
        return self._reseed.get(index) != peer or len(self.credit) == 1

    def _load(self, link: Link, now: float) -> tuple[float, float]:
        """Seconds until a third party would have one more of this holder; less weight makes them longer."""
        backlog = len(self._sent.get(link.peer, ())) + sum(sending.push for sending in link.sending.values())
        expected = link.latency + self._segment_bytes / (link.claimed * link.reach)
        passing = link.passing
        if passing is None:  # unproven: at least as long as it is taking now
            since = min((self._begun[index] for index in self._sent.get(link.peer, ())), default=now)
            passing = max(expected, now - since)
        return (backlog + 1) * passing / link.weight, self._total.get(link.peer, 0) / link.weight

    def _third_party(self, holder: PeerId, index: int) -> bool:
        """Whether somebody else still wants the segment, and so could prove that the holder passes it on."""
        return any(peer != holder and not self.peers.held.get(peer, 0) >> index & 1 for peer in self.credit)

    def _held_by_another(self, holder: PeerId, index: int) -> bool:
        own = self.peers.held.get(holder, 0) >> index & 1
        return not self.peers.levels[own] >> index & 1

    def _confirm(self, holder: PeerId, index: int) -> int:
        del self._sent[holder][index]
        bit = 1 << index
        self._busy &= ~bit
        new = bit & ~self.confirmed
        self.confirmed |= bit
        return new

    def _reward(self, link: Link | None, seconds: float) -> None:
        if link is not None:
            link.passed_on(seconds)
            link.weight = min(link.weight * RECOVERY, 1.0)

    def _deadline(self, link: Link, at: float) -> float:
        watch = watch_seconds(link, self._segment_bytes)
        return min(max(at, self._progress.get(link.peer, at)) + watch, at + PATIENCE * watch)
