"""What a node asks for next: rarest first, from the holder that will answer soonest.

A set of segments is an int whose bit i is segment i (the wire's Bitmap, little-endian), so that set algebra over a
million segments stays one machine operation.

    Availability   which linked peers hold which segments, and how many hold each
    Fetch          one artifact on its way in.  Segment: MISSING -> REQUESTED (1 or 2 copies) -> VERIFYING -> HAVE

Invariants: at most MAX_COPIES of a segment are in flight; a segment is in one state; an excluded peer is asked nothing
until its time is over, so a peer wrongly excluded cannot strand an artifact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from aurora_p2p.types import PeerId
from aurora_p2p.wire.limits import MAX_SEGMENTS

if TYPE_CHECKING:
    from random import Random

MAX_COPIES = 2
"""A hedge doubles a request once; more would feed a congested link with copies."""
STALLS_TO_EXCLUDE = 2
EXCLUDE_SECONDS = 8.0
"""Longer than an artifact of a healthy swarm takes (2-10 s), so in practice "for this artifact"; doubled each time."""
MAX_EXCLUDE_SECONDS = 300.0
MAX_FALLBACK_STEPS = 64
"""Announcements of a host waiting for their turn are merged beyond this many."""


def bits(mask: int) -> Iterator[int]:
    """Indices of the set bits, ascending; linear in the length of the mask."""
    for position, byte in enumerate(mask.to_bytes(-(-mask.bit_length() // 8), "little")):
        while byte:
            low = byte & -byte
            yield 8 * position + low.bit_length() - 1
            byte ^= low


def mask_of(indices: Iterable[int]) -> int:
    """The set of these indices. Each must be below MAX_SEGMENTS, which bounds the result to 128 KiB."""
    mask = 0
    for index in indices:
        if index >= MAX_SEGMENTS:
            raise ValueError(f"segment {index} is past the limit of {MAX_SEGMENTS}")
        mask |= 1 << index
    return mask


def random_bit(mask: int, rng: Random) -> int:
    """One set bit of a non-empty mask, drawn by a random starting point."""
    start = rng.randrange(mask.bit_length())
    tail = mask >> start
    return start + (tail & -tail).bit_length() - 1


class Availability:
    """Who holds what among the linked peers. levels[k] is the set of segments that exactly k counted peers hold.

    A suspended peer's holdings are remembered but not counted.
    """

    def __init__(self, segments: int) -> None:
        self.full = (1 << segments) - 1
        self.held: dict[PeerId, int] = {}
        self.levels: list[int] = [self.full]
        self._suspended: set[PeerId] = set()

    def add(self, peer: PeerId, mask: int) -> int:
        """Returns what is new."""
        new = mask & self.full & ~self.held.get(peer, 0)
        self.held[peer] = self.held.get(peer, 0) | new
        if peer not in self._suspended:
            self._raise(new)
        return new

    def take(self, peer: PeerId, mask: int) -> None:
        """The peer no longer holds these."""
        gone = mask & self.held.get(peer, 0)
        if gone:
            self.held[peer] &= ~gone
            if peer not in self._suspended:
                self._lower(gone)

    def drop(self, peer: PeerId) -> None:
        """The peer is gone."""
        self.take(peer, self.held.get(peer, 0))
        self.held.pop(peer, None)
        self._suspended.discard(peer)

    def suspend(self, peer: PeerId) -> None:
        if peer not in self._suspended:
            self._suspended.add(peer)
            self._lower(self.held.get(peer, 0))

    def resume(self, peer: PeerId) -> None:
        if peer in self._suspended:
            self._suspended.discard(peer)
            self._raise(self.held.get(peer, 0))

    def counted(self, peer: PeerId) -> int:
        """What may be asked of this peer."""
        return 0 if peer in self._suspended else self.held.get(peer, 0)

    def rarest(self, candidates: int, rng: Random) -> int | None:
        """A random one of the candidates that the fewest peers (at least one) hold."""
        for level in self.levels[1:]:
            if level & candidates:
                return random_bit(level & candidates, rng)
        return None

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
        self.needed = peers.full
        """All segments there are, as far as is known: the size bound, then the final page."""
        self.have = 0
        self.verifying = 0
        self.copies: dict[int, list[PeerId]] = {}
        self.stalls: dict[PeerId, int] = {}
        self.excluded: dict[PeerId, float] = {}
        self.credit: dict[PeerId, int] = {}
        """Pushes that each host may still send us."""
        self._requested = 0
        self._fallback: dict[PeerId, int] = {}
        self._fallback_due: deque[tuple[float, PeerId, int]] = deque()

    @property
    def missing(self) -> int:
        """Neither held nor being verified."""
        return self.needed & ~(self.have | self.verifying)

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

    def pick_from_host(self, host: PeerId, rng: Random) -> int | None:
        """An idle segment that no other peer offers and that the host announced long enough ago."""
        mask = self.idle & self.peers.levels[0] & self._fallback.get(host, 0)
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

    def stall(self, peer: PeerId, now: float) -> None:
        """The peer did not answer in time; the second time it is excluded for a while."""
        self.stalls[peer] = self.stalls.get(peer, 0) + 1
        beyond = self.stalls[peer] - STALLS_TO_EXCLUDE
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
