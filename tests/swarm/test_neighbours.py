"""With whom a node keeps links: who is drawn, who is exchanged, and what an attacker's addresses get him."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.swarm.neighbours import (
    ACROSS,
    ANCHORS,
    DRAWN,
    MANY,
    RESAMPLE_SECONDS,
    RESAMPLED,
    SUBNET_SHARE,
    WANTED,
    Candidate,
    Neighbourhood,
    Places,
    choose_neighbours,
    places_for,
)
from aurora_p2p.swarm.roster import Peer
from aurora_p2p.swarm.subnets import bulk_ips, subnets_of
from aurora_p2p.types import PeerId
from aurora_p2p.wire.trust import PeerRecord
from tests.swarm.world import SWARM

ME = PeerId("me")
HOST = PeerId("host")


def name(number: int) -> PeerId:
    return PeerId(f"peer-{number:04}")


def member(peer: PeerId, region: int = 0, *bulk: str) -> Peer:
    return Peer(PeerRecord(SWARM, peer, 1, (), bulk, 1000), region, False)


def far_apart(count: int, *, region: int = 0, first: int = 0) -> dict[PeerId, Peer]:
    """Members of one region, each in a network of its own."""
    numbers = range(first, first + count)
    return {name(n): member(name(n), region, f"198.{18 + n // 256}.{n % 256}.1:4102") for n in numbers}


def hood(local: tuple[str, ...] = (), seed: int = 1) -> Neighbourhood:
    return Neighbourhood(ME, Random(seed), local)


def candidates(regions: list[int], subnets: list[str] | None = None) -> dict[PeerId, Candidate]:
    networks = subnets or [str(n) for n in range(len(regions))]
    pairs = zip(regions, networks, strict=True)
    return {name(n): Candidate(region, frozenset({net})) for n, (region, net) in enumerate(pairs)}


# ---- the rule


@given(
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from("abcdefgh")), max_size=80),
    st.integers(0, 30),
    st.integers(0, 12),
    st.integers(0, 2**32),
)
def test_places_are_filled_as_far_as_there_are_candidates(members, region, across, seed) -> None:
    of = candidates([r for r, _ in members], [net for _, net in members])
    chosen = choose_neighbours(of, 0, Places(region, across), Random(seed))
    near = [peer for peer in chosen if of[peer].region == 0]
    assert len(set(chosen)) == len(chosen)
    assert len(near) == min(region, sum(r == 0 for r, _ in members))
    assert len(chosen) - len(near) == min(across, sum(r != 0 for r, _ in members))


@given(st.lists(st.integers(0, 7), max_size=60), st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_the_order_of_the_roster_does_not_matter(regions, seed, shuffler) -> None:
    of = candidates(regions)
    shuffled = list(of.items())
    shuffler.shuffle(shuffled)
    places = Places(DRAWN, ACROSS)
    assert choose_neighbours(of, 0, places, Random(seed)) == choose_neighbours(dict(shuffled), 0, places, Random(seed))


@given(st.lists(st.integers(0, 7), min_size=ACROSS, max_size=60), st.integers(0, 2**32))
def test_links_across_lead_to_every_other_region(regions, seed) -> None:
    of = candidates(regions)
    chosen = choose_neighbours(of, 0, Places(DRAWN, ACROSS), Random(seed))
    assert {of[peer].region for peer in chosen} | {0} == {*regions, 0}


def test_a_network_full_of_members_gets_a_quarter_of_the_places() -> None:
    of = candidates([0] * 80, ["attacker"] * 60 + [str(n) for n in range(20)])
    for seed in range(20):
        chosen = choose_neighbours(of, 0, Places(DRAWN, ACROSS), Random(seed))
        assert sum("attacker" in of[peer].subnets for peer in chosen) <= DRAWN // SUBNET_SHARE


def test_a_network_full_of_members_never_keeps_an_honest_one_out() -> None:
    of = candidates([0] * 69, ["attacker"] * 60 + [str(n) for n in range(9)])
    honest = {peer for peer, candidate in of.items() if "attacker" not in candidate.subnets}
    for seed in range(20):
        assert honest <= set(choose_neighbours(of, 0, Places(DRAWN, ACROSS), Random(seed)))


def test_small_regions_are_drawn_whole_and_a_node_that_nobody_can_dial_draws_all_its_links() -> None:
    assert places_for(candidates([0] * WANTED), 0, dialled=True) == Places(WANTED, ACROSS)
    assert places_for(candidates([0] * (WANTED + 1)), 0, dialled=True) == Places(DRAWN, ACROSS)
    assert places_for(candidates([0] * (WANTED + 1)), 0, dialled=False) == Places(WANTED, ACROSS)


# ---- over time


def test_the_hosts_are_chosen_on_top_of_those_drawn() -> None:
    one = hood()
    one.update(far_apart(60) | {HOST: member(HOST, 3, "203.0.113.1:1"), ME: member(ME, 0, "203.0.113.2:1")}, {HOST}, 0)
    assert one.chosen[0] == HOST
    assert len(one.chosen) == 1 + DRAWN
    assert ME not in one.chosen


def test_a_new_roster_changes_only_what_it_must() -> None:
    one, peers = hood(), far_apart(60)
    one.update(peers, (), 0.0)
    before = set(one.chosen)
    gone = sorted(before)[0]
    one.update({peer: record for peer, record in peers.items() if peer != gone} | far_apart(20, first=60), (), 1.0)
    assert before - {gone} < set(one.chosen)
    assert len(one.chosen) == DRAWN


def test_a_region_that_grows_past_its_limit_costs_nobody_a_neighbour() -> None:
    one = hood()
    one.update(far_apart(WANTED), (), 0.0)
    before = set(one.chosen)
    one.update(far_apart(WANTED + 1), (), 1.0)
    assert set(one.chosen) == before


def test_every_half_minute_two_are_exchanged_and_the_anchors_stay() -> None:
    one, peers = hood(), far_apart(200)
    one.update(peers, (), 0.0)
    anchors = one.chosen[:ANCHORS]
    linked = list(peers)[: WANTED + 2]
    now = 0.0
    for _ in range(50):
        before = set(one.chosen)
        one.resample(linked, now + RESAMPLE_SECONDS / 2)
        assert set(one.chosen) == before
        now = one.next_deadline()
        one.resample(linked, now)
        assert len(before - set(one.chosen)) == RESAMPLED
        assert len(one.chosen) == DRAWN
    assert one.chosen[:ANCHORS] == anchors


def test_nobody_is_exchanged_where_there_is_nobody_else() -> None:
    one, peers = hood(), far_apart(10) | far_apart(5, region=1, first=100)
    one.update(peers, (), 0.0)
    one.resample(peers, one.next_deadline())
    assert set(one.chosen) == set(peers)


def test_who_lacks_links_draws_more_and_who_has_too_many_fewer() -> None:
    one, peers = hood(), far_apart(200)
    one.update(peers, (), 0.0)
    one.resample(list(peers)[: WANTED - 5], one.next_deadline())
    assert len(one.chosen) == DRAWN + 5
    one.resample((), one.next_deadline())
    assert len(one.chosen) == WANTED
    one.resample(list(peers)[: MANY + 1], one.next_deadline())
    assert len(one.chosen) == WANTED - RESAMPLED
    for _ in range(20):
        one.resample(list(peers)[: MANY + 1], one.next_deadline())
    assert len(one.chosen) == DRAWN


def test_two_hundred_members_who_all_draw_have_the_links_they_want() -> None:
    peers = far_apart(200)
    links = {peer: set[PeerId]() for peer in peers}
    for seed, peer in enumerate(peers):
        drawing = Neighbourhood(peer, Random(seed))
        drawing.update(peers, (), 0.0)
        for other in drawing.chosen:
            links[peer].add(other)
            links[other].add(peer)
    assert 22 <= sum(map(len, links.values())) / len(links) <= 24


def test_a_member_that_moves_to_our_region_is_no_longer_far() -> None:
    one = hood()
    one.update({ME: member(ME, 2), name(1): member(name(1), 1, "203.0.113.1:1")}, (), 0.0)
    assert one.is_far(name(1))
    one.update({ME: member(ME, 2), name(1): member(name(1), 2, "203.0.113.1:1")}, (), 1.0)
    assert not one.is_far(name(1))
    assert not one.is_far(name(2))


# ---- subnets


def test_a_peer_counts_in_every_network_it_names_but_not_in_local_ones() -> None:
    record = member(ME, 0, "203.0.113.9:1", "[2001:db8:1:2::3]:1", "10.0.0.1:1", "nonsense").record
    ips = bulk_ips(record)
    assert subnets_of(ips) == {"203.0.113.0/24", "2001:db8:1::/48", "10.0.0.0/24"}
    assert subnets_of(ips, ("10.0.0.0/8", "2001:db8::/32")) == {"203.0.113.0/24"}


def test_members_of_a_local_network_have_no_quota() -> None:
    peers = {name(n): member(name(n), 0, f"10.0.0.{n}:4102") for n in range(40)}
    peers |= far_apart(40, first=100)
    free, capped = hood(("10.0.0.0/8",)), hood()
    for one in (free, capped):
        one.update(peers, (), 0.0)
    assert sum(peer < name(100) for peer in capped.chosen) <= DRAWN // SUBNET_SHARE
    assert sum(peer < name(100) for peer in free.chosen) > DRAWN // SUBNET_SHARE
