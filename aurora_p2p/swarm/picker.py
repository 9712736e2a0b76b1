"""What a node asks for next: rarest first, from the holder that will answer soonest.

    Availability   which linked peers hold which segments, and how many hold each
    Fetch          one artifact on its way in.  Segment: MISSING -> REQUESTED (1 or 2 copies) -> VERIFYING -> HAVE

Invariants: at most MAX_COPIES of a segment are in flight; a segment is in one state; an excluded peer is asked nothing
until its time is over, so a peer wrongly excluded cannot strand an artifact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from aurora_p2p.swarm.bitset import random_bit
from aurora_p2p.types import PeerId

if TYPE_CHECKING:
    from random import Random

MAX_COPIES = 2
"""A hedge doubles a request once; more would feed a congested link with copies."""
DUPLICATE_SHARE = 0.02
"""Of what we hold, that may have come twice before silence is no longer hedged; it is still given up as a stall."""
FREE_DUPLICATES = 4
STALLS_TO_EXCLUDE = 2
EXCLUDE_SECONDS = 8.0
"""Longer than an artifact of a healthy swarm takes (2-10 s), so in practice "for this artifact"; doubled each time."""
MAX_EXCLUDE_SECONDS = 300.0
MAX_FALLBACK_STEPS = 64
"""Announcements of a host waiting for their turn are merged beyond this many."""


class Availability:
    """Who holds what among the linked peers. levels[k] is the set of segments that exactly k counted peers hold.

    What suspended peers and peers across an ocean hold is remembered but not counted.
    """

    def __init__(self, segments: int, is_far: Callable[[PeerId], bool] = lambda _: False) -> None:
        self.full = (1 << segments) - 1
        self.held: dict[PeerId, int] = {}
        self.levels: list[int] = [self.full]
        self._suspended: set[PeerId] = set()
        self._far: set[PeerId] = set()
        self._is_far = is_far

    def add(self, peer: PeerId, mask: int) -> int:
        """Returns what is new."""
        if peer not in self.held and self._is_far(peer):
            self._far.add(peer)
        new = mask & self.full & ~self.held.get(peer, 0)
        self.held[peer] = self.held.get(peer, 0) | new
        if self._counts(peer):
            self._raise(new)
        return new

    def take(self, peer: PeerId, mask: int) -> None:
        """The peer no longer holds these."""
        gone = mask & self.held.get(peer, 0)
        if gone:
            self.held[peer] &= ~gone
            if self._counts(peer):
                self._lower(gone)

    def drop(self, peer: PeerId) -> None:
        """The peer is gone."""
        self.take(peer, self.held.get(peer, 0))
        self.held.pop(peer, None)
        self._suspended.discard(peer)
        self._far.discard(peer)

    def suspend(self, peer: PeerId) -> None:
        self._mark(self._suspended, peer, True)

    def resume(self, peer: PeerId) -> None:
        self._mark(self._suspended, peer, False)

    def place(self) -> None:
        """The map has changed: count each peer on its side of the ocean."""
        for peer in self.held:
            self._mark(self._far, peer, self._is_far(peer))

    def counted(self, peer: PeerId) -> int:
        """What may be asked of this peer, without crossing an ocean."""
        return self.held.get(peer, 0) if self._counts(peer) else 0

    def across(self, peer: PeerId) -> int:
        """What may be asked of this peer, if an ocean lies between us."""
        return self.held.get(peer, 0) if peer in self._far and peer not in self._suspended else 0

    def beyond(self) -> dict[PeerId, int]:
        """What each peer across may be asked for."""
        return {peer: held for peer in self._far if (held := self.across(peer))}

    def rarest(self, candidates: int, rng: Random) -> int | None:
        """A random one of the candidates that the fewest peers (at least one) hold."""
        for level in self.levels[1:]:
            if level & candidates:
                return random_bit(level & candidates, rng)
        return None

    def _counts(self, peer: PeerId) -> bool:
        return peer not in self._suspended and peer not in self._far

    def _mark(self, marks: set[PeerId], peer: PeerId, on: bool) -> None:
        before = self._counts(peer)
        (marks.add if on else marks.discard)(peer)
        after = self._counts(peer)
        if before and not after:
            self._lower(self.held.get(peer, 0))
        elif after and not before:
            self._raise(self.held.get(peer, 0))

    def _raise(self, mask: int) -> None:
        for k in reversed(range(len(self.levels))):
            moved = self.levels[k] & mask
            if moved:
                if k + 1 == len(self.levels):
                    self.levels.append(0)
                self.levels[k] ^= moved
                self.levels[k + 1] |= moved

    def _lower(self, mask: int) -> None:
        for k in range(1, len(self.levels)):
            moved = self.levels[k] & mask
            self.levels[k] ^= moved
            self.levels[k - 1] |= moved


class Fetch:
    """The receiving side of one artifact. `peers` counts everybody but hosts: those are the last resort."""

    def __init__(self, peers: Availability, *, catch_up: bool) -> None:
        self.peers = peers
        self.catch_up = catch_up
        """The artifact was complete elsewhere when we first heard of it: it yields to live ones."""
        self.wanted = False
        self.only = peers.full
        """What may be asked of others: less than everything while we make the artifact ourselves (Probe)."""
        self.needed = peers.full
        """All segments there are, as far as is known: the size bound, then the final page."""
        self.have = 0
        self.verifying = 0
        self.copies: dict[int, list[PeerId]] = {}
        self.stalls: dict[PeerId, int] = {}
        self.excluded: dict[PeerId, float] = {}
        self.credit: dict[PeerId, int] = {}
        """Pushes that each peer may still send us."""
        self.duplicates = 0
        """Segments that came once more after we had them."""
        self._requested = 0
        self._fallback: dict[PeerId, int] = {}
        self._fallback_due: deque[tuple[float, PeerId, int]] = deque()

    @property
    def missing(self) -> int:
        """Neither held nor being verified."""
        return self.needed & self.only & ~(self.have | self.verifying)

    @property
    def probing(self) -> bool:
        """Whether the rest of the artifact is made here."""
        return self.only != self.peers.full

    @property
    def resting(self) -> bool:
        """Whether what is missing comes from nobody else: it takes no turn from other artifacts."""
        return self.probing and not self.missing and not self.copies

    @property
    def may_hedge(self) -> bool:
        """Whether hedging has cost little so far."""
        few = len(self.copies) <= FREE_DUPLICATES and self.endgame
        return few or self.duplicates <= FREE_DUPLICATES + DUPLICATE_SHARE * self.have.bit_count()

    @property
    def idle(self) -> int:
        """Missing and asked of nobody."""
        return self.missing & ~self._requested

    @property
    def endgame(self) -> bool:
        """Everything that is missing has been asked for."""
        return bool(self.copies) and not self.idle

    def pick(self, free: Iterable[PeerId], rng: Random) -> int | None:
        """The rarest idle segment that one of the `free` peers holds."""
        union = 0
        for peer in free:
            union |= self.peers.counted(peer)
        return self.peers.rarest(self.idle & union, rng)

    def pick_across(self, free: Iterable[PeerId], allowed: int, rng: Random) -> int | None:
        """An idle segment of those allowed that one of the `free` peers across offers."""
        union = 0
        for peer in free:
            union |= self.peers.across(peer)
        mask = self.idle & allowed & union
        return random_bit(mask, rng) if mask else None

    def pick_from_host(self, host: PeerId, rng: Random, snubbed: Collection[PeerId] = ()) -> int | None:
        """An idle segment that the host announced long enough ago and no other peer offers, but for snubbed ones."""
        mask = self.idle & self._fallback.get(host, 0)
        for peer in self.peers.held if mask else ():
            if peer not in snubbed:
                mask &= ~(self.peers.counted(peer) | self.peers.across(peer))
        return random_bit(mask, rng) if mask else None

    def host_offers(self, host: PeerId, index: int) -> bool:
        """Whether this host may be asked for the segment, should nobody else deliver it."""
        return bool(self._fallback.get(host, 0) >> index & 1)

    def host_has(self, host: PeerId, mask: int, *, due: float) -> None:
        """A host announced segments; they may be asked of it from `due` on."""
        if len(self._fallback_due) >= MAX_FALLBACK_STEPS:
            _, peer, waiting = self._fallback_due.pop()
            if peer == host:
                mask |= waiting
            else:
                self._fallback[peer] = self._fallback.get(peer, 0) | waiting
        self._fallback_due.append((due, host, mask))

    def host_lacks(self, host: PeerId, mask: int) -> None:
        """A host that was asked does not have these (any more)."""
        self._fallback[host] = self._fallback.get(host, 0) & ~mask

    def request(self, peer: PeerId, index: int) -> None:
        self.copies.setdefault(index, []).append(peer)
        self._requested |= 1 << index

    def settle(self, peer: PeerId, index: int) -> None:
        """A copy asked of this peer is no longer on its way."""
        copies = self.copies.get(index)
        if copies is None or peer not in copies:
            return
        copies.remove(peer)
        if not copies:
            del self.copies[index]
            self._requested &= ~(1 << index)

    def stall(self, peer: PeerId, now: float, *, streak: int = 0) -> None:
        """The peer did not answer in time; the second time it is excluded for a while.

        streak: how often it did so since it delivered last, whatever the artifact.
        """
        self.stalls[peer] = self.stalls.get(peer, 0) + 1
        beyond = max(self.stalls[peer], streak) - STALLS_TO_EXCLUDE
        if beyond >= 0:
            self.excluded[peer] = now + min(EXCLUDE_SECONDS * 2 ** min(beyond, 8), MAX_EXCLUDE_SECONDS)
            self.peers.suspend(peer)

    def expire(self, now: float) -> bool:
        """Let announcements of hosts come due and excluded peers return. True when something became askable."""
        changed = False
        while self._fallback_due and self._fallback_due[0][0] <= now:
            _, host, mask = self._fallback_due.popleft()
            self._fallback[host] = self._fallback.get(host, 0) | mask
            changed = True
        for peer in [peer for peer, until in self.excluded.items() if until <= now]:
            del self.excluded[peer]
            self.peers.resume(peer)
            changed = True
        return changed

    def next_deadline(self) -> float:
        due = min(self.excluded.values(), default=float("inf"))
        return min(due, self._fallback_due[0][0]) if self._fallback_due else due

    def forget(self, peer: PeerId) -> None:
        """The link is gone; what was learned about the peer's stalls stays."""
        for index in [index for index, copies in self.copies.items() if peer in copies]:
            self.settle(peer, index)
        self.excluded.pop(peer, None)
        self.credit.pop(peer, None)
        self._fallback.pop(peer, None)
        self._fallback_due = deque(step for step in self._fallback_due if step[1] != peer)
        self.peers.drop(peer)
