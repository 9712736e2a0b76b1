"""Pushes across oceans and their repair: one exchange machine in a swarm of regions, driven by hand."""

from __future__ import annotations

import pytest

from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.crossing import MAX_DEADLINE, MIN_DEADLINE
from aurora_p2p.swarm.downlink import GATEWAY_CREDIT
from aurora_p2p.swarm.geography import Geography
from aurora_p2p.types import Epoch, PeerId
from aurora_p2p.wire.exchange import Credit, RequestSegments
from tests.swarm.world import HOST, ME, A, B, Bench, C, Published, identity, roster

ONE = Published.make()
D, E = (identity(name).peer for name in "de")
ABROAD = {ME: 0, A: 0, B: 1, C: 1, D: 2}


def frames(effects: list[ev.Effect], kind: type, peer: PeerId | None = None) -> list:  # type: ignore[type-arg]
    sent = [effect for effect in effects if isinstance(effect, ev.SendFrame) and peer in (None, effect.peer)]
    return [effect.frame for effect in sent if isinstance(effect.frame, kind)]


def asked(effects: list[ev.Effect]) -> dict[PeerId, set[int]]:
    requests: dict[PeerId, set[int]] = {}
    for effect in effects:
        if isinstance(effect, ev.SendFrame) and isinstance(effect.frame, RequestSegments):
            requests.setdefault(effect.peer, set()).update(effect.frame.segments)
    return requests


def pushed(effects: list[ev.Effect]) -> list[tuple[PeerId, int]]:
    sent = [effect for effect in effects if isinstance(effect, ev.SendSegment) and effect.frame.push == "gateway"]
    return [(effect.peer, effect.index) for effect in sent]


def world(regions: dict[PeerId, int], *, probation: tuple[PeerId, ...] = (), final: bool = False) -> Bench:
    """A machine that fetches ONE, live, linked to the host and to everybody of the roster."""
    bench = Bench()
    bench.do(ev.RosterChanged(roster(regions, probation=probation)))
    for peer in (HOST, *(peer for peer in regions if peer != ME)):
        bench.do(ev.LinkUp(peer))
    bench.fetch(ONE, HOST, *(peer for peer in regions if peer != ME), final=False)
    return bench


def first_hold(bench: Bench, index: int) -> list[ev.Effect]:
    """The origin pushes a segment to us, and it is stored."""
    effects = bench.do(ONE.segment_in(HOST, index, push=True))
    return effects + bench.do(ev.Stored(ONE.artifact, index))


def credit(bench: Bench, *peers: PeerId, segments: int = GATEWAY_CREDIT) -> list[ev.Effect]:
    return [effect for peer in peers for effect in bench.do(ev.FrameIn(peer, Credit(ONE.artifact, segments)))]


# -- a first holder


def test_a_first_holder_pushes_at_once_to_one_gateway_of_each_other_region() -> None:
    bench = world(ABROAD)
    credit(bench, B, C, D)
    sent = pushed(first_hold(bench, 0))
    assert len(sent) == 2
    assert {index for _, index in sent} == {0}
    assert D in dict(sent)
    assert {B, C} & set(dict(sent))


def test_what_waits_for_credit_is_pushed_when_it_comes() -> None:
    bench = world(ABROAD)
    assert pushed(first_hold(bench, 0)) == []
    assert pushed(credit(bench, D)) == [(D, 0)]


def test_only_what_came_from_the_origin_is_pushed() -> None:
    bench = world(ABROAD)
    credit(bench, B, C, D)
    bench.have(ONE, A, 0)
    bench.do(ONE.segment_in(A, 0))
    assert pushed(bench.do(ev.Stored(ONE.artifact, 0))) == []


def test_a_region_that_has_the_segment_gets_no_push() -> None:
    bench = world(ABROAD)
    bench.have(ONE, D, 0)
    credit(bench, B, C, D)
    assert [peer for peer, _ in pushed(first_hold(bench, 0)) if peer == D] == []


def test_a_gateway_on_probation_or_out_of_credit_is_passed_over() -> None:
    bench = world(ABROAD, probation=(B,))
    credit(bench, B, C, segments=1)
    assert pushed(first_hold(bench, 0)) == [(C, 0)]
    assert pushed(first_hold(bench, 1)) == []


def test_a_push_lost_with_its_gateway_goes_to_the_next() -> None:
    bench = world({ME: 0, B: 1, C: 1})
    credit(bench, B, C)
    gateway = pushed(first_hold(bench, 0))[0][0]
    other = C if gateway == B else B
    assert pushed(bench.do(ev.LinkDown(gateway))) == [(other, 0)]


def test_a_member_that_asks_for_what_is_due_to_its_region_becomes_the_gateway() -> None:
    bench = world({ME: 0, B: 1, C: 1})
    first_hold(bench, 0)
    effects = bench.do(ev.FrameIn(B, RequestSegments(ONE.artifact, 0, (0,))))
    assert [effect.peer for effect in effects if isinstance(effect, ev.SendSegment)] == [B]
    assert pushed(credit(bench, B, C)) == []


def test_a_swarm_of_one_region_has_no_gateways() -> None:
    bench = world({ME: 3, A: 3, B: 3})
    credit(bench, A, B)
    assert pushed(first_hold(bench, 0)) == []


# -- a gateway, and those who wait for it


def test_members_across_are_granted_credit_and_members_of_the_region_none() -> None:
    bench = Bench()
    bench.do(ev.RosterChanged(roster(ABROAD)))
    for peer in (A, B):
        bench.do(ev.LinkUp(peer))
    effects = bench.fetch(ONE, A, B, final=False)
    assert [frame.segments for frame in frames(effects, Credit, B)] == [GATEWAY_CREDIT]
    assert frames(effects, Credit, A) == []


def test_a_push_within_credit_is_kept_and_one_beyond_is_refused() -> None:
    bench = world(ABROAD)
    for index in range(GATEWAY_CREDIT - 1):
        effects = bench.do(ONE.segment_in(B, index % 8, push=True))
    bench.do(ONE.segment_in(B, 7, push=True))
    assert not any(isinstance(effect, ev.Refused) for effect in effects)
    effects = bench.do(ONE.segment_in(B, 7, push=True))
    assert [effect.reason for effect in effects if isinstance(effect, ev.Refused)]


def test_nothing_is_asked_across_while_the_push_may_still_come() -> None:
    bench = world(ABROAD)
    assert asked(bench.have(ONE, B, *range(8))) == {}
    assert asked(bench.pass_time(MIN_DEADLINE - 0.05)) == {}


def test_a_gateway_whose_push_does_not_come_asks_for_it() -> None:
    bench = world({ME: 0, B: 1, C: 1})
    bench.do(ev.RosterChanged(roster({ME: 0, A: 0, B: 1, C: 1}, epoch=2)))
    bench.have(ONE, B, *range(8))
    effects = bench.pass_time(MAX_DEADLINE)
    assert asked(effects).keys() == {B}, "rather of the one who told us: it may be pushing already"


def test_a_region_without_its_gateway_asks_in_turns() -> None:
    bench = world({ME: 0, A: 0, D: 0, E: 0, B: 1})
    bench.have(ONE, B, *range(8))
    mine = set().union(*asked(bench.pass_time(MAX_DEADLINE)).values())
    assert mine, "we are the first or second choice for some"
    assert mine < set(range(8)), "and others for the rest"
    bench.pass_time(3 * MAX_DEADLINE)
    assert bench.machine._catalog.artifacts[ONE.artifact].crossing.open == 0xFF, (
        "nobody brought them: we may ask for all"
    )


def test_a_segment_that_appeared_in_the_region_is_pulled_inside_only() -> None:
    bench = world(ABROAD)
    bench.have(ONE, B, *range(8))
    assert asked(bench.have(ONE, A, *range(8))).keys() == {A}
    assert B not in asked(bench.pass_time(0.25))


def test_what_the_last_holder_of_the_region_took_away_is_asked_across_again() -> None:
    bench = world(ABROAD)
    bench.have(ONE, B, 0)
    bench.do(ev.LinkDown(A))
    bench.do(ev.LinkUp(A))
    bench.have(ONE, A, 0)
    bench.do(ev.LinkDown(A))
    assert asked(bench.pass_time(MAX_DEADLINE)).get(B) == {0}


def test_the_only_member_of_a_region_asks_at_once_and_is_pushed_nothing() -> None:
    bench = Bench()
    bench.do(ev.RosterChanged(roster({ME: 0, B: 1, C: 1})))
    bench.do(ev.LinkUp(B))
    effects = bench.fetch(ONE, B, final=False)
    assert frames(effects, Credit) == []
    assert asked(bench.have(ONE, B, *range(8)))[B]


def test_a_roster_that_moves_peers_moves_what_they_hold() -> None:
    bench = world(ABROAD)
    bench.have(ONE, B, *range(8))
    effects = bench.do(ev.RosterChanged(roster({ME: 1, A: 1, B: 1, C: 1, D: 2}, epoch=2)))
    assert asked(effects).keys() == {B}


# -- the order of gateways


def test_everybody_with_the_same_roster_names_the_same_gateways_and_shares_the_segments() -> None:
    view = roster({A: 0, B: 0, C: 0, D: 0, ME: 1})
    first: list[PeerId] = []
    for me in (A, ME):
        geography = Geography(me)
        geography.take(view)
        first = [geography.order(ONE.artifact, index, [A, B, C, D])[0] for index in range(400)]
        assert first == [geography.order(ONE.artifact, index, [D, B, C, A])[0] for index in range(400)]
    assert all(60 <= first.count(peer) <= 140 for peer in (A, B, C, D))


@pytest.mark.parametrize("claims", [{A: 10**9}, {A: 0}])
def test_no_claim_makes_a_member_gateway_of_much_more_than_its_share(claims: dict[PeerId, int]) -> None:
    geography = Geography(ME)
    geography.take(roster({A: 0, B: 0, ME: 1}, up_kbps={B: 50_000, **claims}))
    first = [geography.order(ONE.artifact, index, [A, B])[0] for index in range(400)]
    assert first.count(A) <= 240


def test_a_roster_that_does_not_name_us_has_no_oceans() -> None:
    geography = Geography(E)
    geography.take(roster(ABROAD, epoch=1))
    assert geography.home is None
    assert not any(geography.is_across(peer) for peer in ABROAD)
    assert Epoch(1) == 1
