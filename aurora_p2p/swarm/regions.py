"""Who is near whom: at most MAX_REGIONS regions out of round trips that members and the host have measured. Sans-IO.

    report(reporter, distances)   the newest word of a member, or of the host itself, on those it has links with
    assign(members)               member -> region, from these words and from what was assigned before

Regions keep their numbers and members their regions:
    a member stays while the others of its region are within FAR (median), and no other region is clearly nearer
    the others are joined to what is near them, nearest first, within NEAR (linkage.py)
    groups that belong to no region yet make new ones, the largest first, while there are numbers
    who is left goes to the nearest region, or makes one of its own if all are beyond FAR; who has no links yet is
    guessed to be where the host sees others equally far
    who has changed its region waits before it may again, twice as long each time

What a liar gets: the host's word is final on its own distances; of two other ends the longer one counts, and a distance
that only one end reports places nobody but that end. So a lie moves its teller. Two tellers who vouch for each other
move each other, and enough of them may use up the numbers that no region had yet; regions that exist stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from statistics import median

from aurora_p2p.swarm.linkage import Edge, join_near
from aurora_p2p.types import PeerId
from aurora_p2p.wire.trust import MAX_REGIONS

MICRO = 1_000_000
NEAR = 30_000
"""Microseconds. A request and its segment of 256 KiB take about as long at 50 Mbit/s (42 ms), so that the way hardly
counts; cities of one continent and their access lines are within it, oceans (70 ms and more) are not."""
FAR = 2 * NEAR
"""Who is inside a region leaves it beyond this: bursts and access lines make a round trip some 10 to 20 ms longer."""
STICKY = 2 / 3
"""How much nearer another region has to be: a third is more than the shortest round trip of some minutes varies."""
MERGE = round(NEAR * STICKY)
"""Two regions become one only well within NEAR, or noise would join and part them in turns."""
MAX_WAIT = 64
"""Assignments that a member waits at most before it changes its region again; changes older than that are forgotten."""


class Regions:
    """`of` is the newest assignment. pins: members whose region the operator has decided."""

    def __init__(self, host: PeerId, pins: Mapping[PeerId, int] | None = None) -> None:
        self._host, self._pins = host, dict(pins or {})
        self._words: dict[PeerId, dict[PeerId, int]] = {}
        """Who says how far from whom, microseconds."""
        self.of: dict[PeerId, int] = {}
        self._round = 0
        """Assignments so far."""
        self._changed: dict[PeerId, tuple[int, int]] = {}
        """Who has changed its region lately: (how often, until which assignment it waits)."""

    def report(self, reporter: PeerId, distances: Mapping[PeerId, float]) -> None:
        """Round trips in seconds; replaces what the reporter said before."""
        self._words[reporter] = {
            peer: round(seconds * MICRO) for peer, seconds in distances.items() if peer != reporter and seconds >= 0
        }

    def assign(self, members: Collection[PeerId]) -> dict[PeerId, int]:
        """A region for each member. What others than members have said is forgotten, and what was said of them."""
        known = frozenset(members)
        self._round += 1
        self._words = {peer: words for peer, words in self._words.items() if peer in known}
        before = {peer: region for peer, region in self.of.items() if peer in known}
        before |= {peer: region for peer, region in self._pins.items() if peer in known}
        regions = self._staying(before)
        self._join(regions, before, known)
        self._place_rest(regions, before, known)
        self.of = {peer: region for region, inside in regions.items() for peer in inside}
        self._count_changes(before)
        return dict(self.of)

    def distance(self, peer: PeerId, others: Iterable[PeerId]) -> float | None:
        """Median of a peer's known distances to others, microseconds; None when none is known."""
        found = [far for other in others if other != peer and (far := self._seen_from(peer, other)) is not None]
        return median(found) if found else None

    def _count_changes(self, before: Mapping[PeerId, int]) -> None:
        forgiven = self._round - MAX_WAIT
        self._changed = {
            peer: (often, until)
            for peer, (often, until) in self._changed.items()
            if peer in self.of and until > forgiven
        }
        for peer in [peer for peer, region in before.items() if self.of[peer] != region]:
            often = self._changed.get(peer, (0, 0))[0] + 1
            self._changed[peer] = (often, self._round + min(2**often, MAX_WAIT))

    # ---- words

    def _agreed(self, one: PeerId, other: PeerId) -> int | None:
        """What counts for everybody: the host's word, or the longer one of two."""
        if self._host in (one, other):
            return self._words.get(self._host, {}).get(other if one == self._host else one)
        there, back = self._words.get(one, {}).get(other), self._words.get(other, {}).get(one)
        return None if there is None or back is None else max(there, back)

    def _seen_from(self, peer: PeerId, other: PeerId) -> int | None:
        """What counts for the place of `peer`: what is agreed, else its own word; of a silent one, the other's."""
        agreed = self._agreed(peer, other)
        if agreed is not None:
            return agreed
        own = self._words.get(peer)
        if own:
            return own.get(other)
        return None if peer == self._host else self._words.get(other, {}).get(peer)

    def _edges(self, members: Collection[PeerId]) -> Iterable[Edge]:
        """What is agreed, each pair once."""
        for one in sorted(self._words):
            for other in self._words[one]:
                agreed = self._agreed(one, other) if other in members else None
                both = one in self._words.get(other, {})
                if agreed is not None and (one < other or not both):
                    yield one, other, agreed

    # ---- the steps of an assignment

    def _staying(self, before: Mapping[PeerId, int]) -> dict[int, set[PeerId]]:
        """Those whom their region still suits, by region. A region of one is nobody's company: it is placed anew."""
        inside = _by_region(before)
        staying: dict[int, set[PeerId]] = {}
        for peer, region in before.items():
            if peer in self._pins or self._waits(peer) or self._suits(peer, region, inside):
                staying.setdefault(region, set()).add(peer)
        return staying

    def _waits(self, peer: PeerId) -> bool:
        return self._round < self._changed.get(peer, (0, 0))[1]

    def _suits(self, peer: PeerId, region: int, regions: Mapping[int, set[PeerId]]) -> bool:
        distance = self.distance(peer, regions[region])
        if distance is None or distance > FAR:
            return False
        if distance <= NEAR:
            return True
        others = (self.distance(peer, inside) for number, inside in regions.items() if number != region)
        return all(other is None or other > distance * STICKY for other in others)

    def _join(self, regions: dict[int, set[PeerId]], before: Mapping[PeerId, int], members: frozenset[PeerId]) -> None:
        """Let regions and those without one grow together; changes `regions`."""
        settled = {peer: region for region, inside in regions.items() for peer in inside}
        units = [frozenset(inside) for inside in regions.values()]
        units += [frozenset({peer}) for peer in members if peer not in settled]

        def limit(one: frozenset[PeerId], other: frozenset[PeerId]) -> int:
            if self._gap(one, other) > NEAR:  # the host sees one much farther away: they cannot be near each other
                return -1
            return MERGE if not settled.keys().isdisjoint(one) and not settled.keys().isdisjoint(other) else NEAR

        clusters = join_near(units, self._edges(members), limit)
        sizes = {region: len(inside) for region, inside in regions.items()}
        regions.clear()
        founded = []
        for cluster in clusters:
            numbers = {settled[peer] for peer in cluster if peer in settled}
            if numbers:  # of two that became one, the larger goes on
                regions[min(numbers, key=lambda number: (-sizes[number], number))] = set(cluster)
            elif len(cluster) > 1:
                founded.append(cluster)
        for cluster in sorted(founded, key=lambda cluster: (-len(cluster), min(cluster))):
            number = _number_for(cluster, before, regions)
            if number is not None:
                regions[number] = set(cluster)

    def _place_rest(
        self, regions: dict[int, set[PeerId]], before: Mapping[PeerId, int], all_: frozenset[PeerId]
    ) -> None:
        """Put everybody without company somewhere; the host first. Changes `regions`."""
        placed = set().union(*regions.values())
        for peer in sorted(all_ - placed, key=lambda peer: (peer != self._host, peer)):
            number = self._place_of(peer, regions, before.get(peer))
            regions.setdefault(number, set()).add(peer)

    def _place_of(self, peer: PeerId, regions: Mapping[int, set[PeerId]], previous: int | None) -> int:
        distances = {
            number: distance * (STICKY if number == previous else 1)
            for number, inside in regions.items()
            if (distance := self.distance(peer, inside)) is not None
        }
        nearest = min(distances, key=lambda number: (distances[number], number), default=None)
        if previous is not None and (previous not in regions or nearest is None):
            return previous  # alone as before, or nothing is known
        if nearest is not None and distances[nearest] <= FAR:
            return nearest
        if previous is not None and previous not in distances:
            return previous  # a guess stands until links refute it
        guess = self._guess(peer, {number: inside for number, inside in regions.items() if number not in distances})
        if guess is not None:
            return guess
        free = _free(regions)
        if free and (nearest is not None or not regions):
            return free[0]
        return nearest if nearest is not None else self._host_region(regions)

    def _guess(self, peer: PeerId, regions: Mapping[int, set[PeerId]]) -> int | None:
        """The region that the host sees as far away as this peer: that does not prove nearness, but links will."""
        seen = self._words.get(self._host, {})
        if peer not in seen:
            return None
        gaps = {
            number: abs(median(views) - seen[peer])
            for number, inside in regions.items()
            if (views := [seen[other] for other in inside if other in seen])
        }
        number = min(gaps, key=lambda number: (gaps[number], number), default=None)
        return number if number is not None and gaps[number] <= NEAR else None

    def _gap(self, one: Iterable[PeerId], other: Iterable[PeerId]) -> float:
        """How much farther away the host sees one group than the other; 0 where it does not see both."""
        seen = self._words.get(self._host, {}) | {self._host: 0}
        views = [[seen[peer] for peer in group if peer in seen] for group in (one, other)]
        return abs(median(views[0]) - median(views[1])) if all(views) else 0.0

    def _host_region(self, regions: Mapping[int, set[PeerId]]) -> int:
        return next((number for number, inside in regions.items() if self._host in inside), 0)


def _by_region(of: Mapping[PeerId, int]) -> dict[int, set[PeerId]]:
    inside: dict[int, set[PeerId]] = {}
    for peer, region in of.items():
        inside.setdefault(region, set()).add(peer)
    return inside


def _free(regions: Collection[int]) -> list[int]:
    return [number for number in range(MAX_REGIONS) if number not in regions]


def _number_for(cluster: frozenset[PeerId], before: Mapping[PeerId, int], regions: Collection[int]) -> int | None:
    """For a new region: the number that most of it had before, if nobody has it now, else the lowest free one."""
    had = Counter(before[peer] for peer in cluster if peer in before and before[peer] not in regions)
    if had:
        return min(had, key=lambda number: (-had[number], number))
    return next(iter(_free(regions)), None)
