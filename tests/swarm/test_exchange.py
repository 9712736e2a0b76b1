"""One exchange machine, driven by hand."""

from typing import TypeVar

import pytest

from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.link import MAX_QUEUE, MIN_SILENCE
from aurora_p2p.swarm.origin import MAX_CREDIT
from aurora_p2p.swarm.roster import RosterView
from aurora_p2p.types import Epoch, Generation, Seq
from aurora_p2p.wire.exchange import (
    Bitfield,
    Cancel,
    Credit,
    Drop,
    Evidence,
    Have,
    Hello,
    Offer,
    Reject,
    RequestSegments,
    SegmentData,
)
from aurora_p2p.wire.manifest import FinalPage
from aurora_p2p.wire.signed import open_signed, seal
from aurora_p2p.wire.trust import Abort, Equivocation
from tests.swarm.world import ADMIT, HOST, PUBLISH, SWARM, A, B, Bench, C, Published, charter, identity

ONE = Published.make()
E = TypeVar("E")
F = TypeVar("F")


def only(effects: list[ev.Effect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def frames(effects: list[ev.Effect], kind: type[F], peer: str | None = None) -> list[F]:
    sent = [effect for effect in only(effects, ev.SendFrame) if peer in (None, effect.peer)]
    return [effect.frame for effect in sent if isinstance(effect.frame, kind)]


def requested(effects: list[ev.Effect], peer: str | None = None) -> set[int]:
    return {index for frame in frames(effects, RequestSegments, peer) for index in frame.segments}


def holder(*peers: str, origin: bool = False) -> Bench:
    """A machine that holds all of ONE."""
    bench = Bench()
    bench.do(ev.Restored(ONE.manifest(), range(8), origin))
    for peer in peers:
        bench.do(ev.LinkUp(peer))  # type: ignore[arg-type]
    return bench


def origin(*peers: str, credit: int = MAX_CREDIT, produced: int = 8) -> Bench:
    """The origin of ONE, to whom these peers gave credit."""
    bench = Bench(*peers)  # type: ignore[arg-type]
    bench.do(ev.Publish(ONE.manifest()))
    for peer in peers:
        bench.do(ev.FrameIn(peer, Credit(ONE.artifact, credit)))  # type: ignore[arg-type]
    return bench


# -- offers


def test_a_header_is_announced_once_and_told_to_the_other_peers() -> None:
    bench = Bench(A, B)
    effects = bench.do(ev.FrameIn(A, Offer(ONE.header, None)))
    assert [effect.manifest.artifact for effect in only(effects, ev.Announced)] == [ONE.artifact]
    assert len(frames(effects, Offer, B)) == 1
    assert frames(effects, Offer, A) == []
    assert only(bench.do(ev.FrameIn(B, Offer(ONE.header, None))), ev.Announced) == []


def test_nothing_is_fetched_before_accept_nor_after_decline() -> None:
    bench = Bench(A)
    bench.do(ev.FrameIn(A, Offer(ONE.header, ONE.final)))
    assert requested(bench.have(ONE, A, *range(8))) == set()
    assert requested(bench.do(ev.Decline(ONE.artifact))) == set()
    assert requested(bench.do(ev.Accept(ONE.artifact))) != set()


@pytest.mark.parametrize(
    "offer",
    [
        Offer(Published.make(publish=identity("mallory")).header, None),
        Offer(seal(PUBLISH, Abort(SWARM, Seq(9), ONE.artifact)), None),
    ],
    ids=["not the publisher", "not a header"],
)
def test_a_header_that_may_not_be_admitted_is_refused(offer: Offer) -> None:
    bench = Bench(A)
    effects = bench.do(ev.FrameIn(A, offer))
    assert len(only(effects, ev.Refused)) == 1
    assert only(effects, ev.Announced) == []


def test_two_artifacts_with_one_seq_stop_everything_until_a_higher_generation() -> None:
    other, later = Published.make(nonce=b"x" * 16), Published.make(seq=2)
    bench = Bench(A, B)
    bench.do(ev.FrameIn(A, Offer(ONE.header, None)))
    effects = bench.do(ev.FrameIn(B, Offer(other.header, None)))
    assert [effect.evidence for effect in only(effects, ev.Equivocated)] == [Equivocation(ONE.header, other.header)]
    assert len(frames(effects, Evidence)) == 2
    assert only(bench.do(ev.FrameIn(A, Offer(later.header, None))), ev.Announced) == []
    bench.do(ev.TrustChanged(PUBLISH.peer, frozenset({HOST}), 2))
    assert len(only(bench.do(ev.FrameIn(A, Offer(later.header, None))), ev.Announced)) == 1


def test_evidence_convicts_only_if_the_publisher_signed_both() -> None:
    forged = Published.make(nonce=b"x" * 16, publish=identity("mallory"))
    real = Published.make(nonce=b"y" * 16)
    bench = Bench(A)
    assert only(bench.do(ev.FrameIn(A, Evidence(ONE.header, forged.header))), ev.Equivocated) == []
    assert only(bench.do(ev.FrameIn(A, Evidence(ONE.header, ONE.header))), ev.Equivocated) == []
    assert only(bench.do(ev.FrameIn(A, Evidence(ONE.header, Published.make(seq=2).header))), ev.Equivocated) == []
    assert len(only(bench.do(ev.FrameIn(A, Evidence(ONE.header, real.header))), ev.Equivocated)) == 1


def test_an_abort_is_passed_on_once_and_the_artifact_never_comes_back() -> None:
    bench = Bench(A, B)
    bench.fetch(ONE, A)
    drop = Drop(seal(PUBLISH, Abort(SWARM, Seq(1), ONE.artifact)))
    effects = bench.do(ev.FrameIn(A, drop))
    assert only(effects, ev.AbortSeen) == [ev.AbortSeen(ONE.artifact)]
    assert frames(effects, Drop, B) == [drop]
    assert bench.do(ev.FrameIn(B, drop)) == []
    effects = bench.do(ev.FrameIn(A, Offer(ONE.header, None)))
    assert only(effects, ev.Announced) == []
    assert frames(effects, Drop, A) == [drop], "who was away is told"


def test_a_forged_abort_changes_nothing() -> None:
    bench = Bench(A)
    bench.fetch(ONE, A)
    assert bench.do(ev.FrameIn(A, Drop(seal(ADMIT, Abort(SWARM, Seq(1), ONE.artifact))))) == []


def test_a_peer_of_another_wire_version_is_closed_with_the_reason() -> None:
    bench = Bench(A)
    effects = bench.do(ev.FrameIn(A, Hello(7, 9, Epoch(0), 0)))
    assert "wire versions 7 to 9" in only(effects, ev.CloseLink)[0].reason


def test_a_peer_that_leaves_the_roster_is_closed_and_hosts_stay() -> None:
    bench = Bench(A, HOST)
    empty = RosterView(charter().delegation, Generation(1), Epoch(1), {})
    effects = bench.do(ev.RosterChanged(empty))
    assert [effect.peer for effect in only(effects, ev.CloseLink)] == [A]
    assert [effect.peer for effect in only(bench.do(ev.LinkUp(B)), ev.CloseLink)] == [B]


# -- the downlink


def test_a_verified_segment_is_kept_and_announced_only_when_stored() -> None:
    bench = Bench(A, B)
    bench.fetch(ONE, A)
    bench.have(ONE, A, 0)
    effects = bench.do(ONE.segment_in(A, 0))
    assert [(effect.index, effect.page) for effect in only(effects, ev.Keep)] == [(0, ONE.pages[0])]
    assert frames(bench.pass_time(0.05), Have) == []
    bench.do(ev.Stored(ONE.artifact, 0))
    assert [frame.segments for frame in frames(bench.pass_time(0.05), Have, B)] == [(0,)]
    assert bench.machine.have(ONE.artifact) == 1


def test_a_segment_that_fails_its_hash_bans_the_sender_only_and_is_asked_of_another() -> None:
    bench = Bench(A, B)
    bench.fetch(ONE, A, B)
    bench.have(ONE, A, 0)
    bench.have(ONE, B, 0)
    bench.do(ONE.segment_in(B, 7))
    first = A if (ONE.artifact, 0) in bench.machine._links[A].requests else B
    second = B if first == A else A
    effects = bench.do(ONE.segment_in(first, 0, good=False))
    assert only(effects, ev.Discard) == [ev.Discard(f"{first}/0")]
    assert [effect.peer for effect in only(effects, ev.Banned)] == [first]
    assert [effect.peer for effect in only(effects, ev.CloseLink)] == [first]
    assert requested(effects, second) == {0}
    assert only(bench.do(ev.LinkUp(first)), ev.CloseLink)[0].peer == first


def test_a_page_that_the_publisher_did_not_sign_bans_its_sender() -> None:
    forged = Published.make(publish=identity("mallory"))
    bench = Bench(A)
    bench.fetch(ONE, A)
    bench.have(ONE, A, 0)
    event = forged.segment_in(A, 0)
    frame = SegmentData(ONE.artifact, 0, "", event.frame.page)
    effects = bench.do(ev.SegmentIn(A, frame, "t", event.length, event.digest))
    assert only(effects, ev.Discard) == [ev.Discard("t")]
    assert [effect.peer for effect in only(effects, ev.Banned)] == [A]


def test_a_segment_without_its_page_is_refused_and_asked_again() -> None:
    bench = Bench(A)
    bench.fetch(ONE, A)
    bench.have(ONE, A, 0)
    effects = bench.do(ONE.segment_in(A, 0, page=False))
    assert len(only(effects, ev.Discard)) == len(only(effects, ev.Refused)) == 1
    assert only(effects, ev.Banned) == []
    assert requested(effects, A) == {0}


def test_a_contradiction_of_the_publisher_drops_the_artifact_and_bans_nobody() -> None:
    good = open_signed(ONE.final, FinalPage, {PUBLISH.peer})
    lie = seal(PUBLISH, FinalPage(good.artifact, good.segments, good.length, good.last, bytes(32), good.digest))
    bench = Bench(A)
    bench.do(ev.Restored(ONE.manifest(complete=False), ()))
    bench.have(ONE, A, *range(8))
    for index in (0, 4):
        bench.do(ONE.segment_in(A, index))
    effects = bench.do(ev.FrameIn(A, Offer(ONE.header, lie)))
    assert [effect.artifact for effect in only(effects, ev.Contradicted)] == [ONE.artifact]
    assert only(effects, ev.Banned) == []
    assert bench.machine.have(ONE.artifact) == 0


def test_a_segment_nobody_asked_for_is_discarded_and_named() -> None:
    bench = Bench(A)
    bench.fetch(ONE, A)
    effects = bench.do(ONE.segment_in(A, 3))
    assert len(only(effects, ev.Discard)) == len(only(effects, ev.Refused)) == 1
    assert only(effects, ev.Banned) == []


def test_a_late_answer_is_welcome_if_the_segment_is_missing_and_silent_if_not() -> None:
    bench = Bench(A, B)
    bench.fetch(ONE, A)
    bench.have(ONE, A, 0)
    assert frames(bench.pass_time(20 * MIN_SILENCE), Cancel, A) != []
    effects = bench.do(ONE.segment_in(A, 0))
    assert len(only(effects, ev.Keep)) == 1
    effects = bench.do(ONE.segment_in(A, 0))
    assert len(only(effects, ev.Discard)) == 1
    assert only(effects, ev.Banned) == []


def test_silence_is_hedged_once_and_the_slower_copy_cancelled() -> None:
    bench = Bench(A, B)
    bench.fetch(ONE, A, B)
    asked = requested(bench.have(ONE, A, 0), A)
    assert asked == {0}
    bench.have(ONE, B, 0)
    effects = bench.pass_time(3 * MIN_SILENCE)
    assert requested(effects, B) == {0}
    effects = bench.do(ONE.segment_in(B, 0))
    assert [frame.segments for frame in frames(effects, Cancel, A)] == [(0,)]


def test_silence_of_the_only_holder_is_hedged_at_a_host_that_announced_the_segment() -> None:
    bench = Bench(A, HOST)
    bench.fetch(ONE, A, final=False)
    bench.have(ONE, HOST, 1)
    bench.pass_time(MIN_SILENCE)
    assert requested(bench.have(ONE, A, 1), A) == {1}
    effects = bench.pass_time(1.2 * MIN_SILENCE)
    assert requested(effects, HOST) == {1}
    assert frames(effects, Cancel, A) == []


def test_a_reject_or_a_lost_link_frees_the_request_for_another_holder() -> None:
    bench = Bench(A, B)
    bench.fetch(ONE, A, B)
    bench.have(ONE, A, 0)
    bench.have(ONE, B, 0)
    effects = bench.do(ev.FrameIn(A, Reject(ONE.artifact, (0,), "gone")))
    assert requested(effects, B) == {0}
    bench.have(ONE, A, 0)
    assert requested(bench.do(ev.LinkDown(B)), A) == {0}


def test_a_busy_peer_is_left_alone_for_a_moment() -> None:
    bench = Bench(A)
    bench.fetch(ONE, A)
    bench.have(ONE, A, 0)
    assert requested(bench.do(ev.FrameIn(A, Reject(ONE.artifact, (0,), "busy")))) == set()
    assert requested(bench.pass_time(0.2), A) == {0}


def test_a_full_disk_stops_asking_and_granting_but_not_serving() -> None:
    bench = Bench(A, HOST)
    bench.do(ev.PauseFetch(True))
    bench.fetch(ONE, A, HOST)
    effects = bench.have(ONE, A, *range(8))
    assert requested(effects) == set()
    effects = bench.do(ev.PauseFetch(False))
    assert requested(effects) != set()
    assert [frame.segments for frame in frames(effects, Credit, HOST)] == [MAX_CREDIT]


def test_a_segment_that_the_disk_refused_is_asked_again() -> None:
    bench = Bench(A)
    bench.fetch(ONE, A)
    bench.have(ONE, A, 0)
    bench.do(ONE.segment_in(A, 0))
    assert requested(bench.do(ev.StoreFailed(ONE.artifact, 0)), A) == {0}


def test_pushes_are_taken_within_credit_and_credit_is_renewed_as_they_are_stored() -> None:
    many = Published.make(segments=80)
    bench = Bench(HOST)
    effects = bench.fetch(many, HOST, final=False)
    assert [frame.segments for frame in frames(effects, Credit, HOST)] == [MAX_CREDIT]
    for index in range(MAX_CREDIT):
        assert len(only(bench.do(many.segment_in(HOST, index, push=True)), ev.Keep)) == 1
    assert len(only(bench.do(many.segment_in(HOST, 70, push=True)), ev.Refused)) == 1
    effects = bench.do(ev.Stored(many.artifact, 0))
    assert [frame.segments for frame in frames(effects, Credit, HOST)] == [MAX_CREDIT]


def test_a_push_from_someone_who_is_no_host_is_refused() -> None:
    bench = Bench(A)
    bench.fetch(ONE, A)
    assert len(only(bench.do(ONE.segment_in(A, 0, push=True)), ev.Refused)) == 1


def test_the_artifact_is_complete_with_its_last_segment_and_its_final_page() -> None:
    bench = Bench(A)
    bench.fetch(ONE, A, final=False)
    bench.have(ONE, A, *range(8))
    done: list[ev.Effect] = []
    for index in range(8):
        bench.do(ONE.segment_in(A, index))
        done += bench.do(ev.Stored(ONE.artifact, index))
    assert only(done, ev.Completed) == []
    effects = bench.do(ev.FrameIn(A, Offer(ONE.header, ONE.final)))
    assert only(effects, ev.Completed) == [ev.Completed(ONE.artifact)]


def test_a_restored_artifact_goes_on_where_it_stopped() -> None:
    bench = Bench(A)
    bench.do(ev.Restored(ONE.manifest(), {0, 1, 2, 3, 5, 6, 7}))
    assert requested(bench.have(ONE, A, *range(8))) == {4}


# -- the uplink


def test_a_new_peer_is_told_of_everything_that_can_be_served() -> None:
    effects = holder().do(ev.LinkUp(A))
    assert [frame.header for frame in frames(effects, Offer, A)] == [ONE.header]
    assert [frame.bitmap for frame in frames(effects, Bitfield, A)] == [b"\xff"]


def test_a_request_is_answered_with_the_page_once_per_link() -> None:
    bench = holder(A)
    effects = bench.do(ev.FrameIn(A, RequestSegments(ONE.artifact, 1, (0, 1, 4))))
    sent = only(effects, ev.SendSegment)
    assert [(effect.index, bool(effect.frame.page)) for effect in sent] == [(0, True), (1, False), (4, True)]
    manifest = ONE.manifest()
    assert all(effect.expected == manifest.expected(effect.index) and effect.length == 256 for effect in sent)


def test_what_is_not_held_is_rejected_as_gone_and_too_much_as_busy() -> None:
    many = Published.make(segments=100)
    bench = Bench(A)
    bench.do(ev.Restored(many.manifest(), range(99)))
    bench.do(ev.FrameIn(A, RequestSegments(many.artifact, 1, tuple(range(64)))))
    effects = bench.do(ev.FrameIn(A, RequestSegments(many.artifact, 2, tuple(range(64, 100)))))
    reasons = {frame.reason: frame.segments for frame in frames(effects, Reject, A)}
    assert reasons["gone"] == (99,)
    assert len(reasons["busy"]) == 99 - MAX_QUEUE - 4


def test_cancel_withdraws_what_has_not_started_and_never_what_carries_a_page() -> None:
    bench = holder(A)
    bench.do(ev.FrameIn(A, RequestSegments(ONE.artifact, 1, tuple(range(8)))))
    effects = bench.do(ev.FrameIn(A, Cancel(ONE.artifact, (0, 1, 1, 7))))
    assert [effect.indices for effect in only(effects, ev.CancelSend)] == [(1,)]
    rest = effects
    for index in (0, 2, 3, 4, 5, 6):
        rest = rest + bench.do(ev.SegmentOut(A, ONE.artifact, index, 256))
    assert {effect.index for effect in only(rest, ev.SendSegment)} == {4, 5, 6}


def test_a_damaged_copy_is_no_longer_served_and_is_fetched_again() -> None:
    bench = holder(A, B)
    bench.have(ONE, B, *range(8))
    bench.do(ev.FrameIn(A, RequestSegments(ONE.artifact, 1, (2,))))
    effects = bench.do(ev.SendFailed(A, ONE.artifact, 2))
    assert [(frame.segments, frame.reason) for frame in frames(effects, Reject, A)] == [((2,), "gone")]
    assert requested(effects, B) == {2}


def test_a_copy_found_damaged_before_it_was_announced_is_not_announced() -> None:
    bench = Bench(A, B)
    bench.fetch(ONE, A)
    bench.have(ONE, A, 0)
    bench.do(ONE.segment_in(A, 0))
    bench.do(ev.Stored(ONE.artifact, 0))
    bench.do(ev.SendFailed(B, ONE.artifact, 0))
    assert frames(bench.pass_time(0.05), Have) == []


# -- the origin


def test_the_origin_pushes_each_segment_once_within_credit() -> None:
    bench = origin(A, B, credit=2)
    sent = only(bench.do(ev.Produced(ONE.artifact, range(8))), ev.SendSegment)
    assert len(sent) == 4
    assert len({effect.index for effect in sent}) == 4
    assert {effect.frame.push for effect in sent} == {"first"}
    more = [bench.do(ev.SegmentOut(effect.peer, ONE.artifact, effect.index, 256)) for effect in sent]
    assert only([effect for effects in more for effect in effects], ev.SendSegment) == []


def test_the_origin_seeds_again_what_nobody_passed_on_and_trusts_that_peer_less() -> None:
    bench = origin(A, B)
    sent = only(bench.do(ev.Produced(ONE.artifact, range(1))), ev.SendSegment)
    first = sent[0].peer
    second = B if first == A else A
    bench.do(ev.SegmentOut(first, ONE.artifact, 0, 256))
    again = only(bench.pass_time(2.0), ev.SendSegment)
    assert [(effect.peer, effect.index) for effect in again] == [(second, 0)]
    assert bench.machine._links[first].weight < 1


def test_a_short_last_segment_does_not_make_the_first_holder_look_slow() -> None:
    bench = origin(A, B)
    sent = only(bench.do(ev.Produced(ONE.artifact, range(1), last_bytes=1)), ev.SendSegment)
    assert sent[0].length == 256, "the final page says how long the segment is"
    bench.now += 0.5
    bench.do(ev.SegmentOut(sent[0].peer, ONE.artifact, 0, 1))
    assert bench.machine.next_deadline() - bench.now < 3.0


def test_a_third_party_that_announces_a_segment_ends_the_watch() -> None:
    bench = origin(A, B)
    sent = only(bench.do(ev.Produced(ONE.artifact, range(1))), ev.SendSegment)
    first = sent[0].peer
    second = B if first == A else A
    bench.do(ev.SegmentOut(first, ONE.artifact, 0, 256))
    bench.have(ONE, first, 0)
    bench.have(ONE, second, 0)
    assert only(bench.pass_time(60.0), ev.SendSegment) == []


def test_what_only_a_lost_peer_held_is_sent_to_another() -> None:
    bench = origin(A)
    bench.do(ev.Produced(ONE.artifact, range(1)))
    bench.do(ev.SegmentOut(A, ONE.artifact, 0, 256))
    bench.have(ONE, A, 0)
    bench.do(ev.LinkDown(A))
    bench.do(ev.LinkUp(C))
    effects = bench.do(ev.FrameIn(C, Credit(ONE.artifact, 8)))
    assert [(effect.peer, effect.index) for effect in only(effects, ev.SendSegment)] == [(C, 0)]


def test_a_false_claim_does_not_strand_a_segment_whose_first_holder_died() -> None:
    bench = origin(A, B)
    first = only(bench.do(ev.Produced(ONE.artifact, range(1))), ev.SendSegment)[0].peer
    second = B if first == A else A
    bench.do(ev.LinkUp(C))
    bench.have(ONE, C, 0)
    effects = bench.do(ev.LinkDown(first))
    assert [(effect.peer, effect.index) for effect in only(effects, ev.SendSegment)] == [(second, 0)]


def test_a_claim_to_hold_what_never_left_the_origin_is_ignored() -> None:
    bench = origin(A)
    bench.have(ONE, B, *range(8))
    bench.do(ev.LinkUp(B))
    bench.have(ONE, B, *range(8))
    sent = only(bench.do(ev.Produced(ONE.artifact, range(8))), ev.SendSegment)
    assert {effect.peer for effect in sent} == {A}


def test_a_peer_that_takes_nothing_does_not_hold_up_the_others() -> None:
    bench = origin(A, B)
    effects = bench.do(ev.Produced(ONE.artifact, range(8)))
    reached_b = set()
    for _ in range(20):
        sends = [effect for effect in only(effects, ev.SendSegment) if effect.peer == B]
        effects = [] if sends else bench.pass_time(1.0)
        for effect in sends:
            reached_b.add(effect.index)
            effects += bench.do(ev.SegmentOut(B, ONE.artifact, effect.index, 256))
            effects += bench.have(ONE, B, effect.index)
    assert reached_b == set(range(8))
