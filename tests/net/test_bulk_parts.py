"""Parts of the data plane without sockets: token buckets, the frame reader, the dialler, the gate's queue."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import trio
import trio.testing
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_p2p.errors import WireError
from aurora_p2p.net.backlog import Backlog
from aurora_p2p.net.buckets import Bucket
from aurora_p2p.net.inbound import Inbound
from aurora_p2p.net.lane import FRAME_SECONDS, allowance
from aurora_p2p.net.links import neighbourhood
from aurora_p2p.net.spool import KEPT_BYTES, Incoming, Spool
from aurora_p2p.types import ArtifactId
from aurora_p2p.wire.bulk import FrameArrived, SegmentArrived, SpoolFull
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.exchange import Have, Hello, SegmentData
from aurora_p2p.wire.frame import encode_frame
from tests.net.bulk_child import identity

PEER = identity(2).peer
Event = FrameArrived | SegmentArrived | SpoolFull


class Taker:
    """Wants `want` bytes again and again; `got` grows."""

    def __init__(self, want: int) -> None:
        self.want, self.got, self.asleep_until = want, 0, 0.0

    def wake(self) -> None:
        self.asleep_until = 0.0

    def turn(self, bucket: Bucket, now: float) -> bool:
        """One attempt, if it is awake; whether it got something."""
        if now < self.asleep_until:
            return False
        granted, again_at = bucket.take(self, self.want, now)
        self.got += granted
        self.asleep_until = 0.0 if granted else again_at
        return granted > 0


@settings(max_examples=25, deadline=None)
@given(st.integers(20_000, 10**6), st.lists(st.integers(1_000, 300_000), min_size=1, max_size=4))
def test_a_cap_holds_over_one_second_and_is_shared_fairly(rate: int, wants: list[int]) -> None:
    bucket, takers = Bucket(rate, 0.0), [Taker(want) for want in wants]
    for step in range(501):
        while sum(taker.turn(bucket, step / 500) for taker in takers):
            pass
    total = sum(taker.got for taker in takers)
    assert 0.95 * rate <= total <= 1.04 * rate
    turns = sorted(taker.got / min(taker.want, max(rate // 64, 512)) for taker in takers)
    assert turns[-1] - turns[0] <= 2.5


def test_urgent_bytes_pass_the_queue_and_segments_pay_for_them() -> None:
    bucket, segment, control = Bucket(100_000, 0.0), Taker(1500), Taker(1500)
    bucket.take(segment, 1500, 1.0)
    granted, _ = bucket.take(control, 1500, 1.0, urgent=True)
    assert granted == 1500
    bucket.take(control, 1500, 1.0, urgent=True)
    granted, again_at = bucket.take(segment, 1500, 1.0)
    assert granted == 0
    assert 1.0 < again_at < 1.05
    assert bucket.take(segment, 1500, again_at + 1e-6)[0] == 1500


def test_a_taker_that_leaves_makes_room_for_the_next() -> None:
    bucket, first, second = Bucket(100_000, 0.0), Taker(1000), Taker(1000)
    bucket.take(first, 1000, 0.0)
    second.asleep_until = bucket.take(second, 1000, 0.0)[1]
    assert second.asleep_until == float("inf")
    bucket.leave(first)
    assert second.asleep_until == 0.0
    assert bucket.take(second, 1000, 1.0)[0] == 1000


def test_no_cap_grants_everything_at_once() -> None:
    bucket = Bucket(0, 0.0)
    assert bucket.take(Taker(1), 1 << 30, 0.0) == (1 << 30, 0.0)


def read(raw: bytes, cuts: list[int], folder: Path) -> list[Event]:
    events: list[Event] = []
    inbound = Inbound(PEER, Spool(folder), events.append, lambda size: 1.0)
    start = 0
    for cut in [*sorted(cuts), len(raw)]:
        inbound.feed(memoryview(raw)[start:cut], 0.0)
        start = max(start, cut)
    inbound.discard()
    return events


SEGMENT = bytes(range(256)) * 9
ARTIFACT = ArtifactId(b"\x11" * 32)
SEGMENT_FRAME = encode(SegmentData(ARTIFACT, 3, "first", b"page"))
STREAM = (
    encode_frame(encode(Hello(1, 1, 7, 0)))
    + bytes(8)
    + encode_frame(SEGMENT_FRAME, SEGMENT)
    + encode_frame(encode(Have(ARTIFACT, (1, 2, 3), 0)))
)


@settings(deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_frames_are_read_the_same_however_they_are_cut(cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        hello, segment, have = read(STREAM, cuts, Path(folder))
        assert isinstance(hello, FrameArrived)
        assert isinstance(have, FrameArrived)
        assert isinstance(segment, SegmentArrived)
        assert segment.frame == SEGMENT_FRAME
        assert segment.digest == blake3(SEGMENT).digest()
        assert Path(segment.path).read_bytes() == SEGMENT
        assert Path(segment.path).parent == Path(folder)


@settings(deadline=None)
@given(st.binary(max_size=400), st.integers(0, len(STREAM)))
def test_any_bytes_are_read_or_break_the_protocol_and_leave_no_file_behind(noise: bytes, keep: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        events: list[Event] = []
        inbound = Inbound(PEER, Spool(folder), events.append, lambda size: 1.0)
        with contextlib.suppress(WireError):
            inbound.feed(memoryview(STREAM[:keep] + noise), 0.0)
        inbound.discard()
        announced = {event.path for event in events if isinstance(event, SegmentArrived)}
        assert {str(path) for path in folder.iterdir()} == announced


def test_a_frame_that_has_started_has_a_deadline_and_our_own_pauses_move_it() -> None:
    with tempfile.TemporaryDirectory() as folder:
        inbound = Inbound(PEER, Spool(Path(folder)), lambda event: None, lambda size: 10.0 + size)
        assert inbound.deadline == float("inf")
        raw = memoryview(encode_frame(SEGMENT_FRAME, SEGMENT))
        inbound.feed(raw[:3], 100.0)
        assert inbound.deadline == 110.0
        inbound.feed(raw[3:20], 105.0)
        assert inbound.deadline == 110.0 + len(SEGMENT_FRAME) + len(SEGMENT)
        inbound.postpone(5.0)
        assert inbound.deadline == 115.0 + len(SEGMENT_FRAME) + len(SEGMENT)
        inbound.feed(raw[20:], 106.0)
        assert inbound.deadline == float("inf")


def test_a_disk_that_refuses_in_the_middle_leaves_no_file(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    (tmp_path / "spool").rmdir()
    incoming = Incoming(spool, 4)
    incoming.write(memoryview(b"abcd"))
    assert not incoming.stored
    assert incoming.finish() == blake3(b"abcd").digest()


def arrive(spool: Spool, payload: bytes) -> Path:
    incoming = Incoming(spool, len(payload))
    incoming.write(memoryview(payload))
    incoming.finish()
    return incoming.path


def test_a_spool_file_is_written_again_only_once_it_was_given_back(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    first, second = arrive(spool, b"a long payload"), arrive(spool, b"another")
    assert first != second
    spool.release(str(first))
    assert arrive(spool, b"short") == first
    assert [first.read_bytes(), second.read_bytes()] == [b"short", b"another"]
    spool.release("/etc/passwd")
    assert arrive(spool, b"x") not in (first, second)


def test_the_spool_keeps_few_free_files(tmp_path: Path) -> None:
    spool, payload = Spool(tmp_path), bytes(KEPT_BYTES // 2)
    paths = [arrive(spool, payload) for _ in range(4)]
    for path in paths:
        spool.release(str(path))
    assert [path.exists() for path in paths] == [True, True, False, False]


def test_a_slow_cap_gives_frames_more_time() -> None:
    assert allowance(0, 0) == FRAME_SECONDS
    assert allowance(1 << 20, 100_000) > allowance(1 << 20, 0)


def test_loopback_has_no_neighbourhood_and_others_share_a_24_or_a_48() -> None:
    assert neighbourhood("127.0.0.1") is None
    assert neighbourhood("::1") is None
    assert neighbourhood("192.0.2.7") == neighbourhood("192.0.2.200")
    assert neighbourhood("2001:db8:1:2::3") == neighbourhood("2001:db8:1:ffff::1")
    assert neighbourhood("2001:db8:2::3") != neighbourhood("2001:db8:1::3")


def test_a_backlog_takes_bursts_and_makes_its_producers_wait() -> None:
    async def main() -> None:
        backlog: Backlog[int] = Backlog(2)
        for number in range(5):
            backlog.put(number)
        reached = []

        async def producer() -> None:
            await backlog.room()
            reached.append(len(backlog))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer)
            await trio.testing.wait_all_tasks_blocked()
            assert reached == []
            assert await backlog.take(4) == [0, 1, 2, 3]
        assert reached == [1]
        async for number in backlog:
            assert number == 4
            break

    trio.run(main)
