"""An artifact that is made here: what is asked of others, what is told, and what an origin makes of it."""

from __future__ import annotations

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.inbound import PEERS_FIRST_SECONDS
from aurora_p2p.types import PeerId
from aurora_p2p.wire.exchange import Credit, Have, Offer, Reject, RequestSegments
from tests.swarm.test_exchange import only
from tests.swarm.world import HOST, A, B, Bench, Published


def asked(effects: list[ev.Effect]) -> list[tuple[PeerId, int]]:
    """Who was asked for what."""
    sent = [effect for effect in only(effects, ev.SendFrame) if isinstance(effect.frame, RequestSegments)]
    return [(effect.peer, index) for effect in sent for index in effect.frame.segments]


def probing() -> tuple[Bench, Published, list[ev.Effect]]:
    """A node that makes an artifact of two pages itself, linked to the host that offers it."""
    bench, made = Bench(HOST, A), Published.make(seq=1)
    bench.do(ev.FrameIn(HOST, Offer(made.header, made.final)))
    return bench, made, bench.do(ev.Probe(made.artifact, (0, 4))) + bench.pass_time(0.05)


def test_a_host_is_asked_for_probes_at_once_and_may_push_nothing() -> None:
    _, _, effects = probing()
    assert sorted(asked(effects)) == [(HOST, 0), (HOST, 4)]
    frames = [effect.frame for effect in only(effects, ev.SendFrame)]
    assert not [frame for frame in frames if isinstance(frame, Credit)]


def test_a_host_that_links_later_is_asked_as_well() -> None:
    bench, made = Bench(A), Published.make(seq=1)
    bench.do(ev.FrameIn(A, Offer(made.header, made.final)))
    assert asked(bench.do(ev.Probe(made.artifact, (0,)))) == []
    bench.do(ev.LinkUp(HOST))
    effects = bench.do(ev.FrameIn(HOST, Offer(made.header, made.final))) + bench.pass_time(0.1)
    assert asked(effects) == [(HOST, 0)]


def test_a_host_that_lacks_a_probe_is_not_asked_for_it_again_and_again() -> None:
    bench, made, _ = probing()
    effects = bench.do(ev.FrameIn(HOST, Reject(made.artifact, (0, 4), "gone")))
    assert asked(effects + bench.pass_time(5.0)) == []


def test_nothing_but_the_probes_is_asked_of_a_peer_and_it_takes_no_turn_from_other_artifacts() -> None:
    bench, made, _ = probing()
    assert asked(bench.have(made, A, *range(8))) == []
    for index in (0, 4):
        bench.do(made.segment_in(HOST, index))
        bench.do(ev.Stored(made.artifact, index))
    assert asked(bench.pass_time(1.0)) == []
    assert bench.machine._downlink._in_flight() == []


def test_the_pages_that_come_with_the_probes_let_what_is_made_here_be_served_and_completed() -> None:
    bench, made, _ = probing()
    for index in (0, 4):
        effects = bench.do(made.segment_in(HOST, index))
        assert len(only(effects, ev.Keep)) == 1
        bench.do(ev.Stored(made.artifact, index))
    effects = []
    for index in (1, 2, 3, 5, 6, 7):
        effects += bench.do(ev.Stored(made.artifact, index))
    assert [effect.artifact for effect in only(effects, ev.Completed)] == [made.artifact]
    told = [effect.frame for effect in only(effects + bench.pass_time(0.1), ev.SendFrame) if effect.peer == A]
    haves = [frame for frame in told if isinstance(frame, Have)]
    assert {index for frame in haves for index in frame.segments} == set(range(8))
    effects = bench.do(ev.FrameIn(A, RequestSegments(made.artifact, 0, (6,))))
    assert [effect.index for effect in only(effects, ev.SendSegment)] == [6]


def test_an_artifact_that_is_accepted_after_all_is_fetched_like_any_other() -> None:
    bench, made, _ = probing()
    bench.have(made, A, *range(8))
    effects = bench.do(ev.Accept(made.artifact)) + bench.pass_time(0.1)
    assert {index for peer, index in asked(effects) if peer == A} >= {1, 2, 3}
    assert any(isinstance(effect.frame, Credit) for effect in only(effects, ev.SendFrame))


def test_what_was_made_here_and_is_gone_counts_as_missing_again() -> None:
    bench, made, _ = probing()
    for index in range(8):
        bench.do(ev.Stored(made.artifact, index))
    bench.do(ev.Decline(made.artifact))
    for index in range(8):
        bench.do(ev.StoreFailed(made.artifact, index))
    assert bench.machine.have(made.artifact) == 0


def origin() -> tuple[Bench, Published, Published]:
    """A host that has published a version, and aside another artifact that leads to it."""
    bench = Bench(A, B)
    live, aside = Published.make(seq=1), Published.make(seq=2, version=1)
    for one in (live, aside):
        bench.do(ev.Publish(one.manifest()))
        bench.do(ev.Produced(one.artifact, range(8)))
        bench.do(ev.Finished(one.artifact))
    return bench, live, aside


def pushed(bench: Bench, published: Published) -> list[int]:
    effects = bench.do(ev.FrameIn(B, Credit(published.artifact, 8)))
    return [effect.index for effect in only(effects, ev.SendSegment)]


def test_an_origin_believes_that_a_member_has_made_what_is_not_live_and_pushes_none_of_it() -> None:
    bench, live, aside = origin()
    bench.have(aside, A, *range(8))
    assert pushed(bench, aside) == []
    bench.have(live, A, *range(8))
    assert pushed(bench, live) != [], "nobody can hold of a live artifact what never left the origin"


def test_an_origin_tells_of_what_others_made_so_that_a_lie_strands_nobody() -> None:
    bench, _, aside = origin()
    bench.have(aside, A, *range(8))
    told = [effect for effect in only(bench.pass_time(1.0), ev.SendFrame) if effect.peer == B]
    haves = [effect.frame for effect in told if isinstance(effect.frame, Have)]
    assert {index for frame in haves for index in frame.segments} == set(range(8))


def newcomer(published: Published, *known: Manifest) -> Bench:
    bench = Bench(HOST)
    for manifest in known:
        bench.do(ev.FrameIn(HOST, Offer(manifest.signed_header, manifest.signed_final)))
    bench.fetch(published, HOST)
    bench.have(published, HOST, *range(8))
    return bench


def test_a_newcomer_asks_members_before_hosts_for_what_is_not_live() -> None:
    aside, live = Published.make(seq=1), Published.make(seq=2)
    bench = newcomer(aside, live.manifest())
    assert asked(bench.pass_time(PEERS_FIRST_SECONDS - 0.5)) == []
    bench.do(ev.LinkUp(A))
    assert {peer for peer, _ in asked(bench.have(aside, A, *range(7)))} == {A}
    assert (HOST, 7) in asked(bench.pass_time(1.0))


def test_a_newcomer_asks_a_host_at_once_for_the_newest_version() -> None:
    bench = newcomer(Published.make(seq=1))
    assert {peer for peer, _ in asked(bench.pass_time(PEERS_FIRST_SECONDS - 0.5))} == {HOST}
