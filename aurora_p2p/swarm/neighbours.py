"""With whom a node keeps links: drawn at random from the roster, in its own region and across, and redrawn slowly.

Sans-IO. `choose_neighbours` is the rule; a Neighbourhood applies it over time:

    a roster, a ban --update--> chosen;   every RESAMPLE_SECONDS --resample--> RESAMPLED of them exchanged for others

Who draws DRAWN members of a region is drawn by as many others, which makes WANTED links; who lacks links all the same,
or cannot be dialled, draws more, and who has too many slowly draws fewer. A small region is drawn whole. Against an
attacker who fills the roster (eclipse):

    the draw is our own: a link that somebody else opens takes none of its places
    the share of one /24 or /48 is capped: what is above the cap only gets places that nobody else could take
    ACROSS links lead to other regions, to as many regions as there are
    the ANCHORS, which we have had longest, are never exchanged

The hosts come on top. It covers neither reachability (net/dialler.py) nor behaviour (strikes.py): the caller leaves out
who cannot be dialled and who is banned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aurora_p2p.swarm.roster import Peer
from aurora_p2p.swarm.subnets import bulk_ips, subnets_of
from aurora_p2p.types import PeerId

if TYPE_CHECKING:
    from random import Random

WANTED = 24
"""Links inside the region: in simulations a full mesh of 50 was slower than 24 each."""
DRAWN = WANTED // 2
MANY = WANTED + WANTED // 2
"""Links inside the region from which on fewer are drawn: early members are drawn by everybody who comes later."""
ACROSS = 8
"""Links to other regions that we draw. Each may be 8 connections, and as many peers draw us: 2 x 8 x 8 and those of
the region stay below the 256 connections of a node."""
SUBNET_SHARE = 4
"""One network may have a quarter of the places, and one at least."""
ANCHORS = 4
"""An attacker who waits for the exchange still faces links that he had no part in."""
RESAMPLE_SECONDS = 30.0
RESAMPLED = 2
"""Places exchanged at once: a link costs a handshake, and the requests under way on the old one."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the choice depends on. subnets: those that count against a quota (subnets.py)."""

    region: int = 0
    subnets: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Places:
    """How many to choose inside the own region, and across all others."""

    region: int = WANTED
    across: int = ACROSS


def candidates_of(peers: Mapping[PeerId, Peer], local: Sequence[str] = ()) -> dict[PeerId, Candidate]:
    """Of a roster's members; local: CIDRs without quotas."""
    return {
        peer: Candidate(member.region, subnets_of(bulk_ips(member.record), local)) for peer, member in peers.items()
    }


def places_for(candidates: Mapping[PeerId, Candidate], home: int, *, dialled: bool) -> Places:
    """How many to draw before any link is open. home: our region. dialled: whether others can dial us."""
    near = sum(candidate.region == home for candidate in candidates.values())
    return Places(DRAWN if dialled and near > WANTED else WANTED)


def choose_neighbours(
    candidates: Mapping[PeerId, Candidate],
    home: int,
    places: Places,
    rng: Random,
    *,
    kept: Iterable[PeerId] = (),
    last: Collection[PeerId] = (),
) -> list[PeerId]:
    """Whom to link with: as many of `kept` as have places, in their order, then others at random, then `last`.

    candidates: whoever may be dialled, without ourselves and the hosts. home: our region.
    The order of `candidates` does not matter.
    """
    drawn = sorted(candidates)
    rng.shuffle(drawn)
    drawn.sort(key=lambda peer: peer in last)
    order = list(dict.fromkeys([*(peer for peer in kept if peer in candidates), *drawn]))
    near = [peer for peer in order if candidates[peer].region == home]
    far = [peer for peer in order if candidates[peer].region != home]
    return _fill(near, places.region, candidates) + _fill(_by_turns(far, candidates), places.across, candidates)


def _by_turns(peers: list[PeerId], candidates: Mapping[PeerId, Candidate]) -> list[PeerId]:
    """The first of each region, then the second of each, and so on."""
    seen: Counter[int] = Counter()
    turn: dict[PeerId, int] = {}
    for peer in peers:
        turn[peer] = seen[candidates[peer].region]
        seen[candidates[peer].region] += 1
    return sorted(peers, key=turn.__getitem__)


def _fill(peers: list[PeerId], places: int, candidates: Mapping[PeerId, Candidate]) -> list[PeerId]:
    """The first `places` within the quota of each network; places that are left go to those above it."""
    quota = max(1, places // SUBNET_SHARE)
    used: Counter[str] = Counter()
    within: list[PeerId] = []
    above: list[PeerId] = []
    for peer in peers:
        subnets = candidates[peer].subnets
        if len(within) == places:
            break
        if any(used[subnet] >= quota for subnet in subnets):
            above.append(peer)
        else:
            used.update(subnets)
            within.append(peer)
    return [*within, *above][:places]


class Neighbourhood:
    """Whom one node keeps links to, over time. Nothing is chosen before the first `update`."""

    def __init__(self, me: PeerId, rng: Random, local: Sequence[str] = ()) -> None:
        self._me, self._rng, self._local = me, rng, local
        self._candidates: dict[PeerId, Candidate] = {}
        self._hosts: tuple[PeerId, ...] = ()
        self._drawn: list[PeerId] = []
        """In the order in which they were drawn."""
        self._home, self._dialled = 0, True
        self._more = 0
        """Drawn in the region beyond DRAWN: because links were lacking, or the region was small once."""
        self._resample_at = float("inf")

    @property
    def chosen(self) -> tuple[PeerId, ...]:
        """The hosts, and those drawn."""
        return (*self._hosts, *self._drawn)

    def is_far(self, peer: PeerId) -> bool:
        """Whether a peer that may be dialled is in another region than we."""
        candidate = self._candidates.get(peer)
        return candidate is not None and candidate.region != self._home

    def update(self, peers: Mapping[PeerId, Peer], hosts: Collection[PeerId], now: float) -> None:
        """A new roster, or a ban.

        peers: whoever may be dialled, and ourselves if the roster has us. Who was chosen before stays so.
        """
        own = peers.get(self._me)
        if own is not None:
            self._home, self._dialled = own.region, bool(own.record.bulk)
        self._candidates = candidates_of(peers, self._local)
        self._candidates.pop(self._me, None)
        self._hosts = tuple(sorted(peer for peer in hosts if peer in self._candidates))
        kept = sum(self._is_near(peer) for peer in self._drawn)
        self._more = min(max(self._more, kept - DRAWN), WANTED - DRAWN)
        self._draw(self._drawn)
        if self._resample_at == float("inf"):
            self._resample_at = now + RESAMPLE_SECONDS

    def resample(self, linked: Collection[PeerId], now: float) -> None:
        """When it is due: exchange RESAMPLED of those chosen, and draw more in the region where links are lacking.

        linked: everybody with an open link, whoever dialled it.
        """
        if now < self._resample_at:
            return
        self._resample_at = now + RESAMPLE_SECONDS
        have = sum(self._is_near(peer) for peer in linked)
        change = WANTED - have if have < WANTED else -RESAMPLED if have > MANY else 0
        self._more = min(max(self._more + change, 0), WANTED - DRAWN)
        recent = self._drawn[ANCHORS:]
        given_up = self._rng.sample(recent, min(RESAMPLED, len(recent)))
        self._draw([peer for peer in self._drawn if peer not in given_up], given_up)

    def next_deadline(self) -> float:
        return self._resample_at

    def _is_near(self, peer: PeerId) -> bool:
        return peer in self._candidates and not self.is_far(peer)

    def _draw(self, kept: list[PeerId], last: Collection[PeerId] = ()) -> None:
        others = {peer: candidate for peer, candidate in self._candidates.items() if peer not in self._hosts}
        places = places_for(others, self._home, dialled=self._dialled)
        places = Places(min(places.region + self._more, WANTED), places.across)
        chosen = choose_neighbours(others, self._home, places, self._rng, kept=kept, last=last)
        age = {peer: index for index, peer in enumerate(kept)}
        self._drawn = sorted(chosen, key=lambda peer: age.get(peer, len(age)))
