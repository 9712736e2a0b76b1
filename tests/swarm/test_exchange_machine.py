"""Any order of events, honest or not, leaves the exchange machine's promises kept."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aurora_p2p.swarm import events as ev
from aurora_p2p.types import PeerId
from aurora_p2p.wire import exchange as frames
from aurora_p2p.wire.signed import seal
from aurora_p2p.wire.trust import Abort
from tests.swarm.world import HOST, SWARM, A, B, Bench, C, Published, identity

SEGMENTS = 8
ONE = Published.make(segments=SEGMENTS)
TWO = Published.make(seq=2, segments=SEGMENTS)
FORGED = Published.make(publish=identity("mallory"))
PUBLISHED = {ONE.artifact: ONE, TWO.artifact: TWO}
peers = st.sampled_from([A, B, C, HOST])
published = st.sampled_from([ONE, TWO])
index = st.integers(0, SEGMENTS - 1)
some = st.lists(st.integers(0, SEGMENTS + 2), min_size=1, max_size=SEGMENTS).map(tuple)
artifacts = st.sampled_from([ONE.artifact, TWO.artifact, FORGED.artifact])
hostile_frames = st.one_of(
    st.builds(frames.Hello, st.integers(0, 1), st.integers(1, 3), st.just(0), st.integers(0, 10**9)),
    st.builds(
        frames.Offer,
        st.sampled_from([ONE.header, TWO.header, FORGED.header, ONE.final]),
        st.sampled_from([None, ONE.final, TWO.final]),
    ),
    st.builds(frames.Bitfield, artifacts, st.binary(max_size=4)),
    st.builds(frames.Have, artifacts, some, st.integers(0, 2**32 - 1)),
    st.builds(frames.RequestSegments, artifacts, st.just(0), some),
    st.builds(frames.Cancel, artifacts, some),
    st.builds(frames.Reject, artifacts, some, st.sampled_from(["busy", "gone", "quota"])),
    st.builds(frames.SegmentData, artifacts, index, st.just(""), st.binary(max_size=8)),
    st.builds(frames.Credit, artifacts, st.integers(0, 64)),
    st.just(frames.Drop(seal(identity("mallory"), Abort(SWARM, 1, ONE.artifact)))),  # type: ignore[arg-type]
    st.just(frames.Evidence(ONE.header, FORGED.header)),
)


class ExchangeMachine(RuleBasedStateMachine):
    """Three peers and a host around one machine; the model knows what is stored and what is asked of whom."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.links: set[PeerId] = set()
        self.keeping: list[tuple[bytes, int]] = []
        self.stored: dict[bytes, set[int]] = {ONE.artifact: set(), TWO.artifact: set()}
        self.asked: dict[tuple[bytes, int], set[PeerId]] = {}
        self.sending: dict[tuple[PeerId, bytes, int], int] = {}
        self.origin_of_two = False

    def do(self, event: ev.Event) -> list[ev.Effect]:
        effects = self.bench.do(event)
        self.check(effects)
        return effects

    def check(self, effects: list[ev.Effect]) -> None:
        for effect in effects:
            match effect:
                case ev.SendFrame(peer, frames.RequestSegments() as frame):
                    for asked in frame.segments:
                        copies = self.asked.setdefault((frame.artifact, asked), set())
                        copies.add(peer)
                        assert len(copies) <= 2, "more than two copies are in flight"
                        assert asked not in self.stored[frame.artifact], "a stored segment is asked for"
                case ev.SendFrame(peer, frames.Cancel() as frame):
                    self.settle(peer, frame.artifact, frame.segments)
                case ev.SendFrame(_, frames.Have() as frame):
                    assert set(frame.segments) <= self.stored[frame.artifact] | {SEGMENTS}
                case ev.SendSegment(peer, _, artifact, sent, expected, length):
                    assert sent in self.stored[artifact], "a segment that is not stored is served"
                    assert expected == PUBLISHED[artifact].manifest().expected(sent)
                    assert length == 256
                    self.sending[peer, artifact, sent] = length
                case ev.CancelSend(peer, artifact, gone):
                    for sent in gone:
                        del self.sending[peer, artifact, sent]
                case ev.Keep(artifact, kept, _, _):
                    self.keeping.append((artifact, kept))
                case ev.CloseLink(peer):
                    self.unlink(peer)
            if isinstance(effect, ev.SendFrame | ev.SendSegment):
                assert effect.peer in self.links, "something is sent to a peer without a link"

    def settle(self, peer: PeerId, artifact: bytes, segments: tuple[int, ...]) -> None:
        for segment in segments:
            self.asked.get((artifact, segment), set()).discard(peer)

    def unlink(self, peer: PeerId) -> None:
        self.links.discard(peer)
        for copies in self.asked.values():
            copies.discard(peer)
        self.sending = {key: length for key, length in self.sending.items() if key[0] != peer}

    @initialize(origin=st.booleans())
    def publish(self, origin: bool) -> None:
        self.origin_of_two = origin
        if origin:
            self.do(ev.Publish(TWO.manifest()))
        for peer in (A, B, C, HOST):
            self.link_up(peer)
            self.offer_and_accept(peer, ONE, final=False)
            self.do(ev.FrameIn(peer, frames.Credit(TWO.artifact, 4)))
        for peer in (A, B, C):
            self.announce_all(peer, ONE)

    @rule(peer=peers)
    def link_up(self, peer: PeerId) -> None:
        self.unlink(peer)
        self.links.add(peer)
        self.do(ev.LinkUp(peer))

    @rule(peer=peers)
    def link_down(self, peer: PeerId) -> None:
        self.unlink(peer)
        self.do(ev.LinkDown(peer))

    @rule(peer=peers, frame=hostile_frames)
    def any_frame(self, peer: PeerId, frame: frames.ExchangeFrame) -> None:
        if isinstance(frame, frames.Reject) and peer in self.links:
            self.settle(peer, frame.artifact, frame.segments)
        self.do(ev.FrameIn(peer, frame))

    @rule(peer=peers, what=published, final=st.booleans())
    def offer_and_accept(self, peer: PeerId, what: Published, final: bool) -> None:
        self.do(ev.FrameIn(peer, frames.Offer(what.header, what.final if final else None)))
        self.do(ev.Accept(what.artifact))

    @rule(peer=peers, what=published)
    def announce_all(self, peer: PeerId, what: Published) -> None:
        self.do(ev.FrameIn(peer, frames.Have(what.artifact, tuple(range(SEGMENTS)), 0)))

    @rule(what=published)
    def decline(self, what: Published) -> None:
        self.do(ev.Decline(what.artifact))

    @rule(peer=peers, what=published, index=index, push=st.booleans(), page=st.booleans(), good=st.booleans())
    def any_segment(self, peer: PeerId, what: Published, index: int, push: bool, page: bool, good: bool) -> None:
        self.arrive(what.segment_in(peer, index, push=push, page=page, good=good))

    @precondition(lambda self: any(self.asked.values()))
    @rule(data=st.data(), good=st.booleans())
    def asked_segment(self, data: st.DataObject, good: bool) -> None:
        pairs = sorted((artifact, segment, peer) for (artifact, segment), to in self.asked.items() for peer in to)
        artifact, segment, peer = data.draw(st.sampled_from(pairs))
        self.arrive(PUBLISHED[artifact].segment_in(peer, segment, good=good))  # type: ignore[index]

    def arrive(self, event: ev.SegmentIn) -> None:
        linked = event.peer in self.links
        before = list(self.keeping)
        if linked:
            self.settle(event.peer, event.frame.artifact, (event.frame.index,))
        effects = self.do(event)
        answers = [e for e in effects if isinstance(e, ev.Keep | ev.Discard) and e.token == event.token]
        assert len(answers) == 1, "a segment is answered by exactly one Keep or Discard"
        if isinstance(answers[0], ev.Keep):
            kept = (event.frame.artifact, event.frame.index)
            assert linked
            assert kept not in before, "a segment is kept twice"
            assert event.digest == PUBLISHED[event.frame.artifact].manifest().expected(event.frame.index)

    @precondition(lambda self: self.keeping)
    @rule(data=st.data(), ok=st.booleans())
    def store_answers(self, data: st.DataObject, ok: bool) -> None:
        artifact, kept = data.draw(st.sampled_from(self.keeping))
        self.keeping.remove((artifact, kept))
        if ok:
            self.stored[artifact].add(kept)
        self.do((ev.Stored if ok else ev.StoreFailed)(artifact, kept))  # type: ignore[arg-type]

    @precondition(lambda self: self.sending)
    @rule(data=st.data(), ok=st.booleans())
    def send_ends(self, data: st.DataObject, ok: bool) -> None:
        peer, artifact, sent = data.draw(st.sampled_from(sorted(self.sending)))
        length = self.sending.pop((peer, artifact, sent))
        if ok:
            self.do(ev.SegmentOut(peer, artifact, sent, length))  # type: ignore[arg-type]
        else:
            self.stored[artifact].discard(sent)
            self.do(ev.SendFailed(peer, artifact, sent))  # type: ignore[arg-type]

    @precondition(lambda self: self.origin_of_two)
    @rule(index=index)
    def produce(self, index: int) -> None:
        self.stored[TWO.artifact].add(index)
        self.do(ev.Produced(TWO.artifact, [index]))

    @rule(paused=st.booleans())
    def disk(self, paused: bool) -> None:
        self.do(ev.PauseFetch(paused))

    @rule(what=published)
    def retire(self, what: Published) -> None:
        if what is TWO and self.origin_of_two:
            return
        self.do(ev.Retire(what.artifact))
        self.keeping = [kept for kept in self.keeping if kept[0] != what.artifact]
        self.stored[what.artifact] = set()
        self.asked = {key: to for key, to in self.asked.items() if key[0] != what.artifact}

    @rule(seconds=st.floats(0.001, 40.0))
    def time_passes(self, seconds: float) -> None:
        self.check(self.bench.pass_time(seconds))

    @invariant()
    def what_is_held_is_what_was_stored(self) -> None:
        for artifact, stored in self.stored.items():
            held = self.bench.machine.have(artifact)  # type: ignore[arg-type]
            assert held == sum(1 << segment for segment in stored)

    @invariant()
    def the_origin_strands_nothing(self) -> None:
        holding = self.bench.machine._catalog.artifacts.get(TWO.artifact)
        if holding is not None and holding.seeder is not None:
            seeder = holding.seeder
            assert seeder.produced & ~(seeder._todo() | seeder._busy | seeder.confirmed) == 0


ExchangeMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestExchangeMachine = ExchangeMachine.TestCase
