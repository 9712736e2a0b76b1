"""Links of several connections: between bulk children, and with peers that the test plays, over 127.0.0.1."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from aurora_p2p.local.clock import boottime
from aurora_p2p.net.tls import NEW_LINK, Fault, Opened
from aurora_p2p.types import Epoch
from aurora_p2p.wire.bulk import (
    MAX_LANES,
    BulkStats,
    FrameArrived,
    LinkClosed,
    LinkOpened,
    SegmentArrived,
    SegmentSent,
    SendFrame,
    SetLanes,
    StopBulk,
)
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.exchange import Credit, Hello, SegmentData
from aurora_p2p.wire.frame import FrameDecoder, encode_frame
from tests.net.bulk_child import ARTIFACT, BulkChild, identity, linked, member_tls

pytestmark = pytest.mark.slow

SEGMENT = 200_000
HELLO = encode(Hello(1, 1, Epoch(0), 0))


class Children:
    """Starts children that are stopped, and must end well, after the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.started: list[BulkChild] = []

    def start(self, number: int) -> BulkChild:
        self.started.append(BulkChild(number, self._folder))
        return self.started[-1]

    def pair(self, lanes: int) -> tuple[BulkChild, BulkChild]:
        """Two of them; the first has dialled the second with so many lanes, which are open."""
        first, second = self.start(1), self.start(2)
        address = second.listening()
        first.listening()
        for child in (first, second):
            child.members(first.peer, second.peer)
        linked(first, second, address, lanes=lanes)
        for child, other in ((first, second), (second, first)):
            wait_for_lanes(child, other, lanes)
        return first, second


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    children = Children(tmp_path)
    yield children
    for child in children.started:
        child.close()


def wait_for_lanes(child: BulkChild, other: BulkChild, lanes: int) -> None:
    child.seen(BulkStats, lambda stats: any(peer == other.peer and lanes == n for peer, _, n in stats.links))


class Player:
    """A peer that the test plays: a link that it opened, and what it joins to it."""

    def __init__(self, child: BulkChild, number: int = 2) -> None:
        self.child, self._tls = child, member_tls(number)
        self.connections: list[socket.socket] = []
        opened = self.open()
        assert isinstance(opened, Opened)
        self.first, self.name = opened.secure, opened.link

    def open(self, link: bytes = NEW_LINK) -> Opened | Fault:
        host, _, port = self.child.listening().rpartition(":")
        raw = socket.create_connection((host, int(port)))
        opened = self._tls.dial(raw, self.child.peer, boottime() + 10, link)
        if isinstance(opened, Opened):
            opened.secure.settimeout(20)
            self.connections.append(opened.secure)
        return opened

    def join(self) -> socket.socket:
        opened = self.open(self.name)
        assert isinstance(opened, Opened)
        return opened.secure

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


@pytest.fixture
def player(children: Children) -> Iterator[Player]:
    child = children.start(1)
    child.members(child.peer, *(identity(number).peer for number in (2, 3)))
    player = Player(child)
    child.wait_for(LinkOpened)
    yield player
    player.close()


def body_of(folder: Path, segments: int) -> Path:
    path = folder / "body"
    path.write_bytes(os.urandom(segments * SEGMENT))
    return path


def test_segments_travel_over_all_lanes_both_ways_and_arrive_exact(children: Children, tmp_path: Path) -> None:
    pair = children.pair(lanes=4)
    body = body_of(tmp_path, 40)
    for sender, receiver in (pair, pair[::-1]):
        for index in range(40):
            sender.send_file(receiver.peer, index, body, index * SEGMENT, SEGMENT)
    for sender, receiver in (pair, pair[::-1]):
        arrived = {decode(one.frame, SegmentData).index: one for one in receiver.take_segments(40)}
        assert b"".join(Path(arrived[index].path).read_bytes() for index in range(40)) == body.read_bytes()
        sender.seen(BulkStats, lambda stats, peer=receiver.peer: (peer, 40 * SEGMENT, 40 * SEGMENT) in stats.peers)
        assert sorted(event.index for event in sender.of_kind(SegmentSent)) == list(range(40))
        assert len(sender.of_kind(LinkOpened)) == 1


def test_the_kernels_round_trip_of_a_link_is_told(children: Children) -> None:
    first, second = children.pair(lanes=1)
    stats = first.seen(BulkStats, lambda stats: any(rtt > 0 for _, rtt, _ in stats.links))
    assert [(peer, lanes) for peer, _, lanes in stats.links] == [(second.peer, 1)]


def test_a_link_gets_more_lanes_when_they_are_wanted_later(children: Children) -> None:
    first, second = children.pair(lanes=1)
    first.channel.send(SetLanes(second.peer, 3))
    second.channel.send(SetLanes(first.peer, 8))  # it did not dial: not its business
    wait_for_lanes(first, second, 3)
    wait_for_lanes(second, first, 3)
    assert max(lanes for stats in second.of_kind(BulkStats) for _, _, lanes in stats.links) == 3


def test_control_frames_never_wait_behind_segments_of_a_link_with_lanes(player: Player, tmp_path: Path) -> None:
    """The lane is full of segments that nobody reads; the first lane carries frames, in order, and no segment."""
    child = player.child
    player.join()
    child.wait_for(BulkStats, lambda stats: [lanes for _, _, lanes in stats.links] == [2])
    body = body_of(tmp_path, 60)
    for index in range(60):
        child.send_file(identity(2).peer, index, body, index * SEGMENT, SEGMENT)
    frames = [HELLO, *(encode(Credit(ARTIFACT, n)) for n in range(5))]
    for frame in frames:
        child.channel.send(SendFrame(identity(2).peer, frame))
    expected = b"".join(encode_frame(frame) for frame in frames)
    received = b""
    while len(received) < len(expected):
        received += player.first.recv(len(expected) - len(received))
    assert received == expected
    assert len(child.of_kind(SegmentSent)) < 60


def test_a_lane_that_dies_costs_no_segment_and_not_the_link(player: Player, tmp_path: Path) -> None:
    child, lane = player.child, player.join()
    child.wait_for(BulkStats, lambda stats: [lanes for _, _, lanes in stats.links] == [2])
    body = body_of(tmp_path, 40)  # more than the buffers of both kernels hold
    child.send_file(identity(2).peer, 7, body, 0, 4 * 2**20)
    child.send_file(identity(2).peer, 8, body, 4 * 2**20, SEGMENT)
    assert lane.recv(1000)
    lane.close()
    decoder, frames = FrameDecoder(), []
    while len(frames) < 2:
        frames += decoder.feed(player.first.recv(1 << 16))
    assert [decode(frame.header, SegmentData).index for frame in frames] == [7, 8]
    assert b"".join(frame.payload for frame in frames) == body.read_bytes()[: 4 * 2**20 + SEGMENT]
    child.seen(SegmentSent, lambda event: event.index == 8)
    assert [event.index for event in child.of_kind(SegmentSent)] == [7, 8]
    assert child.of_kind(LinkClosed) == []


def test_a_link_ends_with_its_first_lane_and_takes_the_others_along(player: Player) -> None:
    child, lane = player.child, player.join()
    player.first.close()
    child.wait_for(LinkClosed)
    assert lane.recv(1) == b""
    assert player.open(player.name) == Fault.NO_SUCH_LINK


@pytest.mark.parametrize("name", [os.urandom(32), b"\x01" * 32], ids=["random", "ones"])
def test_a_lane_of_a_link_that_does_not_exist_is_refused(player: Player, name: bytes) -> None:
    assert player.open(name) == Fault.NO_SUCH_LINK


def test_a_lane_joined_by_another_peer_is_refused(player: Player) -> None:
    """A member that has seen the name, and even has a link of its own."""
    other = Player(player.child, 3)
    assert other.open(player.name) == Fault.NO_SUCH_LINK
    other.close()
    assert isinstance(player.open(player.name), Opened)


def test_a_lane_of_a_peer_that_is_no_member_is_refused(player: Player) -> None:
    child = player.child
    child.members(child.peer)
    child.wait_for(LinkClosed)
    assert player.open(player.name) == Fault.NOT_A_MEMBER


def test_too_many_lanes_are_refused(player: Player) -> None:
    for _ in range(MAX_LANES - 1):
        player.join()
    assert player.open(player.name) == Fault.TOO_MANY
    child = player.child
    child.seen(BulkStats, lambda stats: dict(stats.refused).get(Fault.TOO_MANY) == 1)
    child.seen(BulkStats, lambda stats: [lanes for _, _, lanes in stats.links] == [MAX_LANES])


def test_a_control_frame_on_a_further_lane_ends_the_link_by_name(player: Player) -> None:
    child, lane = player.child, player.join()
    lane.sendall(encode_frame(encode(SegmentData(ARTIFACT, 0, "", b"")), b"payload") + bytes(8))
    assert Path(child.wait_for(SegmentArrived).path).read_bytes() == b"payload"
    lane.sendall(encode_frame(HELLO))
    assert "Hello frame is not on the link's first connection" in child.wait_for(LinkClosed).reason
    assert child.of_kind(FrameArrived) == []
    assert player.first.recv(1) == b""


@pytest.mark.parametrize("told", [True, False], ids=["told", "alone"])
def test_the_child_ends_although_its_peer_is_stopped(children: Children, tmp_path: Path, told: bool) -> None:
    first, second = children.pair(lanes=4)
    body = body_of(tmp_path, 60)
    second.process.send_signal(signal.SIGSTOP)
    try:
        for index in range(600):
            first.send_file(second.peer, index, body, index % 60 * SEGMENT, SEGMENT)
        first.channel.send(StopBulk()) if told else first.channel.close()
        assert first.process.wait(10) == 0
    finally:
        second.process.send_signal(signal.SIGCONT)
    second.wait_for(LinkClosed)
