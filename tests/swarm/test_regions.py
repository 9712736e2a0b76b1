"""Regions out of round trips: told apart, kept, and not moved by a liar."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aurora_p2p.swarm.linkage import join_near
from aurora_p2p.swarm.regions import FAR, MICRO, NEAR, Regions
from aurora_p2p.types import PeerId
from aurora_p2p.wire.trust import MAX_REGIONS

HOST = PeerId("host")
SECONDS = st.floats(0, 2.0) | st.sampled_from([0.0, NEAR / MICRO, FAR / MICRO, 0.001])


def name(number: int) -> PeerId:
    return PeerId(f"peer-{number:03}")


PEERS = [HOST, *(name(number) for number in range(23))]
WORDS = st.dictionaries(
    st.sampled_from(PEERS), st.dictionaries(st.sampled_from([*PEERS, PeerId("gone")]), SECONDS), max_size=24
)


class World:
    """Members at places; both ends of a link measure it, with noise. Seconds of round trip between places."""

    def __init__(self, places: dict[PeerId, int], far: float = 0.07, near: float = 0.01, seed: int = 1) -> None:
        self.places, self._far, self._near, self._rng, self._seed = places, far, near, Random(seed), seed

    def distance(self, one: PeerId, other: PeerId, noise: float = 0.0) -> float:
        base = self._near if self.places[one] == self.places[other] else self._far
        return base * (1 + self._rng.uniform(0, noise))

    def is_linked(self, one: PeerId, other: PeerId) -> bool:
        """The host has links with everybody, members of one place with each other, others by chance."""
        chance = Random(f"{self._seed} {min(one, other)} {max(one, other)}").random()
        return HOST in (one, other) or self.places[one] == self.places[other] or chance < 0.3

    def tell(self, regions: Regions, noise: float = 0.0) -> None:
        """Everybody reports."""
        for one in self.places:
            linked = [other for other in self.places if other != one and self.is_linked(one, other)]
            regions.report(one, {other: self.distance(one, other, noise) for other in linked})


def world(*sizes: int, far: float = 0.07, near: float = 0.01, seed: int = 1) -> World:
    """sizes: of the places; the host is at the first."""
    numbers = (place for place, size in enumerate(sizes) for _ in range(size))
    return World({HOST: 0, **{name(index): place for index, place in enumerate(numbers)}}, far, near, seed)


def places_of(of: dict[PeerId, int], places: dict[PeerId, int]) -> dict[int, set[int]]:
    """Region -> the places of its members."""
    found: dict[int, set[int]] = {}
    for peer, region in of.items():
        found.setdefault(region, set()).add(places[peer])
    return found


def assert_told_apart(of: dict[PeerId, int], places: dict[PeerId, int]) -> None:
    found = places_of(of, places)
    assert all(len(inside) == 1 for inside in found.values())
    assert len(found) == len(set(places.values()))


# ---- what is told apart


@pytest.mark.parametrize("sizes", [(4, 4), (8, 8, 8, 8), (1, 1), (1, 2), (20, 1), (3, 3, 3, 3, 3, 3, 3, 3)], ids=str)
def test_places_seventy_milliseconds_apart_are_regions(sizes) -> None:
    there, regions = world(*sizes), Regions(HOST)
    there.tell(regions, noise=0.3)
    of = regions.assign(there.places)
    assert_told_apart(of, there.places)


def test_everybody_on_one_machine_is_region_0() -> None:
    there, regions = world(12, near=0.0001), Regions(HOST)
    there.tell(regions)
    assert set(regions.assign(there.places).values()) == {0}


def test_nobody_is_torn_apart_by_a_slow_access_line() -> None:
    there, regions = world(10), Regions(HOST)
    there.tell(regions)
    slow = name(3)
    for one in there.places:
        regions.report(one, {other: 0.055 if slow in (one, other) else 0.01 for other in there.places})
    assert set(regions.assign(there.places).values()) == {0}


def test_a_chain_of_cities_is_not_one_region_from_end_to_end() -> None:
    cities = [name(number) for number in range(9)]
    regions = Regions(HOST)
    for one, _ in enumerate(cities):
        regions.report(cities[one], {cities[other]: 0.02 * abs(one - other) for other in range(9) if other != one})
    of = regions.assign(cities)
    assert of[cities[0]] != of[cities[8]]
    assert of[cities[0]] == of[cities[1]]


def test_more_places_than_regions_leave_the_smallest_with_their_nearest() -> None:
    sizes = [5, 5, 5, 5, 5, 5, 5, 5, 2, 1]
    there, regions = world(*sizes), Regions(HOST)
    there.tell(regions)
    of = regions.assign(there.places)
    assert set(of.values()) == set(range(MAX_REGIONS))
    large = {peer: place for peer, place in there.places.items() if sizes[place] == 5}
    assert_told_apart({peer: of[peer] for peer in large}, large)


def test_a_newcomer_without_links_is_guessed_by_the_hosts_view_and_moved_once_it_has_measured() -> None:
    there, regions = world(4, 4), Regions(HOST)
    there.tell(regions)
    first = regions.assign(there.places)
    there.places[name(50)] = 1
    there.places[name(51)] = 1
    regions.report(HOST, {peer: there.distance(HOST, peer) for peer in there.places if peer != HOST})
    of = regions.assign(there.places)
    assert of[name(50)] == of[name(51)] == first[name(7)]
    for one in (name(50), name(51)):
        regions.report(one, {HOST: 0.07, **{name(number): 0.15 for number in range(8)}, name(50): 0.01, name(51): 0.01})
    for one in range(8):
        regions.report(
            name(one),
            dict.fromkeys((name(50), name(51)), 0.15)
            | {other: there.distance(name(one), other) for other in there.places if other not in (name(50), name(51))},
        )
    of = regions.assign(there.places)
    assert of[name(50)] == of[name(51)] == 2
    assert {peer: of[peer] for peer in first} == first


def test_who_is_not_known_at_all_is_where_the_host_is() -> None:
    there, regions = world(3, 3), Regions(HOST)
    there.tell(regions)
    of = regions.assign([*there.places, name(90)])
    assert of[name(90)] == of[HOST] == 0


# ---- what is kept

NOISE = 0.4
"""Of a round trip: 28 ms of 70, what NEAR allows for."""


@example([1, 1, 5, 6, 2], 114)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=8), st.integers(0, 1000))
def test_noise_moves_nobody(sizes, seed) -> None:
    there, regions = world(*sizes, seed=seed), Regions(HOST)
    there.tell(regions, noise=NOISE)
    before = regions.assign(there.places)
    for _ in range(5):
        there.tell(regions, noise=NOISE)
        assert regions.assign(there.places) == before


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(2, 6), min_size=2, max_size=8), st.integers(0, 1000))
def test_regions_keep_their_numbers_while_members_come_and_go(sizes, seed) -> None:
    there, regions, rng = world(*sizes), Regions(HOST), Random(seed)
    there.tell(regions)
    number = {there.places[peer]: region for peer, region in regions.assign(there.places).items()}
    fresh = 100
    for _ in range(10):
        leaving = rng.choice([peer for peer in there.places if peer != HOST])
        alone = sum(place == there.places[leaving] for place in there.places.values()) < 3
        if not alone:
            del there.places[leaving]
        there.places[name(fresh)] = rng.randrange(len(sizes))
        fresh += 1
        there.tell(regions)
        of = regions.assign(there.places)
        assert all(of[peer] == number[place] for peer, place in there.places.items())


def test_a_member_that_moves_across_an_ocean_changes_its_region() -> None:
    there, regions = world(5, 5), Regions(HOST)
    there.tell(regions)
    before = regions.assign(there.places)
    there.places[name(2)] = 1
    there.tell(regions)
    of = regions.assign(there.places)
    assert of[name(2)] == before[name(9)]
    assert {peer: of[peer] for peer in of if peer != name(2)} == {p: r for p, r in before.items() if p != name(2)}


def test_a_line_that_is_slow_for_a_while_does_not_make_a_region() -> None:
    there, regions = world(5, 5), Regions(HOST)
    there.tell(regions)
    before = regions.assign(there.places)
    slow = name(2)
    for one in there.places:
        regions.report(
            one,
            {
                other: there.distance(one, other) + (0.07 if slow in (one, other) else 0.0)
                for other in there.places
                if other != one
            },
        )
    assert regions.assign(there.places) == before


def test_a_pinned_member_stays_where_the_operator_put_it() -> None:
    there, regions = world(4, 4), Regions(HOST, {name(1): 5})
    there.tell(regions)
    of = regions.assign(there.places)
    assert of[name(1)] == 5
    del there.places[name(1)]
    assert name(1) not in regions.assign(there.places)


# ---- what a liar gets


LIES = st.dictionaries(st.sampled_from(PEERS[:20]), SECONDS)


@example([3], {HOST: 0.0, name(1): 1.0, name(2): 1.0}, False, 1)  # half of what joined with it says "far"
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(3, 6), min_size=1, max_size=3), LIES, st.booleans(), st.integers(0, 1000))
def test_whatever_one_liar_says_moves_nobody_else(sizes, lies, honest_once, seed) -> None:
    there, regions = world(*sizes, seed=seed), Regions(HOST)
    liar = Random(seed).choice(list(there.places)[1:])
    there.tell(regions)
    if honest_once:
        regions.assign(there.places)
    regions.report(liar, lies)
    of = regions.assign(there.places)
    others = {peer: place for peer, place in there.places.items() if peer != liar}
    assert_told_apart({peer: of[peer] for peer in others}, others)


def test_two_liars_who_vouch_for_each_other_do_not_join_two_regions() -> None:
    there, regions = world(5, 5), Regions(HOST)
    there.tell(regions)
    for one, other in ((name(1), name(8)), (name(8), name(1))):
        regions.report(one, dict.fromkeys(there.places, 0.001) | {other: 0.0})
    of = regions.assign(there.places)
    others = {peer: place for peer, place in there.places.items() if peer not in (name(1), name(8))}
    assert_told_apart({peer: of[peer] for peer in others}, others)


def test_a_liar_inside_a_region_keeps_no_newcomers_out_of_it() -> None:
    there, regions = world(6), Regions(HOST)
    there.tell(regions)
    regions.assign(there.places)
    newcomers = [name(20), name(21), name(22)]
    there.places |= dict.fromkeys(newcomers, 0)
    there.tell(regions)
    regions.report(name(2), {peer: 2.0 if peer in newcomers else 0.01 for peer in there.places})
    assert set(regions.assign(there.places).values()) == {0}


def test_who_changes_its_region_again_and_again_waits_longer_each_time() -> None:
    there, regions = world(5, 5), Regions(HOST)
    there.tell(regions)
    of = regions.assign(there.places)
    changes = []
    for round_ in range(200):
        there.places[name(2)] = 1 - there.places[name(2)] if of[name(2)] == there.places[name(2)] else 1 - of[name(2)]
        there.tell(regions)
        now = regions.assign(there.places)
        changes += [round_] if now[name(2)] != of[name(2)] else []
        of = now
    waits = [later - sooner for sooner, later in pairwise(changes)]
    assert waits[:5] == [2, 4, 8, 16, 32]
    assert len(changes) < 10


def test_nobody_can_claim_to_be_near_the_host() -> None:
    there, regions = world(4, 4), Regions(HOST)
    there.tell(regions)
    liar = name(6)
    regions.report(liar, {HOST: 0.0})
    of = regions.assign(there.places)
    assert of[liar] != of[HOST]


def test_members_who_vouch_for_each_other_do_not_take_a_silent_one_with_them() -> None:
    there, regions = world(4, 4), Regions(HOST)
    there.tell(regions)
    before = regions.assign(there.places)
    for liar in (name(5), name(6)):
        regions.report(liar, {name(0): 0.0})
    assert regions.assign(there.places)[name(0)] == before[name(0)]


# ---- whatever is said


@settings(max_examples=100, deadline=None)
@given(st.lists(WORDS, max_size=4), st.lists(st.sampled_from(PEERS), unique=True), st.randoms(use_true_random=False))
def test_any_words_give_at_most_eight_regions_and_no_order_matters(rounds, members, shuffler) -> None:
    one, other = Regions(HOST), Regions(HOST)
    for words in rounds:
        for peer, said in words.items():
            one.report(peer, said)
        shuffled = list(words.items())
        shuffler.shuffle(shuffled)
        for peer, said in shuffled:
            pairs = list(said.items())
            shuffler.shuffle(pairs)
            other.report(peer, dict(pairs))
        again = list(members)
        shuffler.shuffle(again)
        of = one.assign(members)
        assert of == other.assign(again) == one.of
        assert of.keys() == set(members)
        assert set(of.values()) <= set(range(MAX_REGIONS))


# ---- median linkage


def test_the_nearest_are_joined_first_and_only_within_the_limit() -> None:
    a, b, c, d = (name(number) for number in range(4))
    start = [frozenset({peer}) for peer in (a, b, c, d)]
    edges = [(a, b, 10), (b, c, 20), (a, c, 50), (c, d, 90)]
    assert join_near(start, edges, lambda one, other: 19) == [frozenset({a, b}), frozenset({c}), frozenset({d})]
    assert join_near(start, edges, lambda one, other: 20) == [frozenset({a, b, c}), frozenset({d})]
    assert join_near(start, [], lambda one, other: 10**9) == sorted(start, key=min)
