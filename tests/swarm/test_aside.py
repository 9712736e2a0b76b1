"""What is published aside, a squash or a snapshot of a version that is out already, never delays the next version."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from aurora_p2p.artifact.manifest import Manifest, artifact_id_of
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.uplink import CATCH_UP_SHARE
from aurora_p2p.types import Version
from aurora_p2p.wire.exchange import Credit, Offer, RequestSegments
from aurora_p2p.wire.signed import seal
from tests.swarm.test_exchange import holder, only
from tests.swarm.world import PUBLISH, A, B, Bench, Published, header, roster

LIVE = Published.make()


def aside(seq: int, version: int) -> Manifest:
    """A header as of an artifact that is only begun."""
    signed = seal(PUBLISH, structs.replace(header(seq=seq), version=Version(version)))
    return Manifest(signed, PUBLISH.peer)


def test_an_origin_pushes_the_next_version_before_what_it_publishes_aside() -> None:
    bench = Bench(A, B)
    live, beside, following = Published.make(seq=1), aside(2, 1), Published.make(seq=3)
    bench.do(ev.Publish(live.manifest()))
    for manifest in (beside, following.manifest(complete=False)):
        bench.do(ev.Publish(manifest))
        for peer in (A, B):
            bench.do(ev.FrameIn(peer, Credit(manifest.artifact, 8)))
    kept = bench.machine._catalog.artifacts
    order = [holding.seq for holding, _ in bench.machine._table.seeding()]
    assert order == [1, 3, 2]
    assert [kept[one].fetch.catch_up for one in kept] == [False, True, False]
    assert bench.machine._catalog.newest == 3


@pytest.mark.parametrize("first", ["live", "aside"])
def test_it_makes_no_difference_which_of_the_two_one_hears_of_first(first: str) -> None:
    bench = Bench(A)
    live = Published.make(seq=5)
    offers = [Offer(live.header, None), Offer(aside(6, 5).signed_header, None)]
    for offer in offers if first == "live" else offers[::-1]:
        bench.do(ev.FrameIn(A, offer))
    holdings = bench.machine._catalog.artifacts
    assert not holdings[live.artifact].fetch.catch_up
    assert first == "aside" or holdings[artifact_id_of(offers[1].header)].fetch.catch_up


def test_a_request_for_the_live_version_is_served_before_one_for_an_artifact_aside() -> None:
    bench = holder()
    newer = Published.make(seq=9)
    beside = replace(newer, header=seal(PUBLISH, structs.replace(header(seq=9), version=Version(1))))
    manifest = Manifest(beside.header, PUBLISH.peer)
    live = next(iter(bench.machine._catalog.artifacts))
    bench.do(ev.Restored(manifest, ()))
    bench.do(ev.LinkUp(A))
    effects = bench.do(ev.FrameIn(A, RequestSegments(live, 0, (0,))))
    assert len(only(effects, ev.SendSegment)) == 1
    rank = bench.machine._uplink._rank
    link = bench.machine._links[A]
    bench.do(ev.FrameIn(A, RequestSegments(live, 0, tuple(range(1, 8)))))
    assert rank(link)[0] is False, "the newest live version, though an artifact with a higher seq is known"


def test_catch_up_gets_a_third_of_the_uplink_at_most_while_a_live_artifact_is_in_flight() -> None:
    bench = holder(A)
    old = next(iter(bench.machine._catalog.artifacts))
    live = Published.make(seq=9)
    bench.fetch(live, A, final=False)
    effects = bench.do(ev.FrameIn(A, RequestSegments(old, 0, tuple(range(8)))))
    assert len(only(effects, ev.SendSegment)) == 1
    bench.do(ev.SegmentOut(A, old, only(effects, ev.SendSegment)[0].index, 256))
    effects = bench.pass_time(256 / (CATCH_UP_SHARE * bench.machine._uplink._places.best) / 2)
    assert only(effects, ev.SendSegment) == []
    assert len(only(bench.do(ev.Decline(live.artifact)), ev.SendSegment)) > 1


def test_probationers_are_no_first_holders_while_there_is_anybody_else() -> None:
    bench = Bench()
    bench.do(ev.RosterChanged(roster({A: 0, B: 0}, probation=(A,))))
    bench.do(ev.Publish(LIVE.manifest()))
    for peer in (A, B):
        bench.do(ev.LinkUp(peer))
        bench.do(ev.FrameIn(peer, Credit(LIVE.artifact, 8)))
    effects = bench.do(ev.Produced(LIVE.artifact, range(8)))
    assert {effect.peer for effect in only(effects, ev.SendSegment)} == {B}
    bench.do(ev.LinkDown(B))
    assert {effect.peer for effect in only(bench.pass_time(1.0), ev.SendSegment)} <= {A}
