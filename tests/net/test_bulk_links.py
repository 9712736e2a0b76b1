"""Bulk children that talk to each other, and to peers that the test plays, over 127.0.0.1."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from aurora_p2p.local.clock import boottime
from aurora_p2p.net.tls import Fault, Opened
from aurora_p2p.types import PeerId
from aurora_p2p.wire.bulk import (
    MAX_FRAME,
    BulkStats,
    CancelSend,
    CloseLink,
    FrameArrived,
    LinkClosed,
    LinkOpened,
    SegmentArrived,
    SegmentFailed,
    SegmentSent,
    SendFile,
    SendFrame,
    SpoolFull,
    StartFailed,
    StopBulk,
)
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.exchange import Credit, Have, Hello, SegmentData
from aurora_p2p.wire.frame import encode_frame
from tests.net.bulk_child import ARTIFACT, BulkChild, identity, linked, member_tls

pytestmark = pytest.mark.slow

SEGMENT = 1536
HELLO = encode(Hello(1, 1, 0, 0))
Start = Callable[..., BulkChild]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts children that are stopped, and must end well, after the test."""
    children: list[BulkChild] = []

    def start(number: int, **options: int) -> BulkChild:
        children.append(BulkChild(number, tmp_path, **options))
        return children[-1]

    yield start
    for child in children:
        child.close()


@pytest.fixture
def pair(start: Start) -> tuple[BulkChild, BulkChild]:
    """Two linked children under a cap of 400 KB/s each way."""
    first, second = start(1, up=400_000, down=400_000), start(2, up=400_000, down=400_000)
    address = second.listening()
    first.listening()
    for child in (first, second):
        child.members(first.peer, second.peer)
    linked(first, second, address)
    return first, second


class Player:
    """A peer that the test plays: a member with a valid handshake, then whatever bytes it likes."""

    def __init__(self, child: BulkChild, number: int) -> None:
        host, _, port = child.listening().rpartition(":")
        raw = socket.create_connection((host, int(port)))
        opened = member_tls(number).dial(raw, child.peer, boottime() + 10)
        assert isinstance(opened, Opened)
        self.secure, self.link = opened.secure, opened.link
        self.secure.settimeout(20)

    def send(self, raw: bytes) -> None:
        self.secure.sendall(raw)

    def close(self) -> None:
        self.secure.close()


def played(start: Start, number: int = 2) -> tuple[BulkChild, Player]:
    child = start(1)
    child.members(child.peer, identity(number).peer)
    player = Player(child, number)
    child.wait_for(LinkOpened)
    return child, player


def body_of(folder: Path, segments: int) -> Path:
    path = folder / "body"
    path.write_bytes(os.urandom(segments * SEGMENT))
    return path


def test_segments_travel_both_ways_under_a_cap_and_arrive_exact(
    pair: tuple[BulkChild, BulkChild], tmp_path: Path
) -> None:
    body = body_of(tmp_path, 48)
    for sender, receiver in (pair, pair[::-1]):
        for index in range(48):
            sender.send_file(receiver.peer, index, body, index * SEGMENT, SEGMENT)
    for sender, receiver in (pair, pair[::-1]):
        arrived = receiver.take_segments(48)
        assert b"".join(Path(event.path).read_bytes() for event in arrived) == body.read_bytes()
        assert {event.peer for event in arrived} == {sender.peer}
        counted = (receiver.peer, 48 * SEGMENT, 48 * SEGMENT)
        sender.seen(BulkStats, lambda stats, counted=counted: counted in stats.peers)
        assert [event.index for event in sender.of_kind(SegmentSent)] == list(range(48))


def sound(peer: PeerId, index: int, body: Path) -> SendFile:
    """The command to send the first segment of a body as segment `index`."""
    digest = blake3(body.read_bytes()[:SEGMENT]).digest()
    return SendFile(peer, encode(SegmentData(ARTIFACT, index, "", b"")), ARTIFACT, index, str(body), 0, SEGMENT, digest)


def test_a_segment_that_rotted_on_disk_is_never_sent(pair: tuple[BulkChild, BulkChild], tmp_path: Path) -> None:
    sender, receiver = pair
    body = body_of(tmp_path, 2)
    rotten = tmp_path / "rotten"
    rotten.write_bytes(bytes(SEGMENT))
    sender.channel.send(sound(receiver.peer, 0, body))
    sender.channel.send(msgspec.structs.replace(sound(receiver.peer, 1, body), path=str(rotten)))
    sender.channel.send(msgspec.structs.replace(sound(receiver.peer, 2, body), path=str(tmp_path / "absent")))
    sender.channel.send(sound(receiver.peer, 3, body))
    assert [decode(event.frame, SegmentData).index for event in receiver.take_segments(2)] == [0, 3]
    sender.seen(SegmentSent, lambda event: event.index == 3)
    assert [event.index for event in sender.of_kind(SegmentFailed)] == [1, 2]


def test_a_full_disk_costs_the_segment_but_not_the_link(pair: tuple[BulkChild, BulkChild], tmp_path: Path) -> None:
    sender, receiver = pair
    body = body_of(tmp_path, 2)
    shutil.rmtree(receiver.spool)
    sender.send_file(receiver.peer, 0, body, 0, SEGMENT)
    refused = receiver.wait_for(SpoolFull)
    assert refused.frame == encode(SegmentData(ARTIFACT, 0, "", b""))
    receiver.spool.mkdir()
    sender.send_file(receiver.peer, 1, body, SEGMENT, SEGMENT)
    assert Path(receiver.wait_for(SegmentArrived).path).read_bytes() == body.read_bytes()[SEGMENT:]
    assert receiver.of_kind(LinkClosed) == []


def test_control_frames_pass_queued_segments_and_cancelled_segments_never_leave(start: Start, tmp_path: Path) -> None:
    sender, receiver = start(1, up=20_000), start(2)
    address = receiver.listening()
    for child in (sender, receiver):
        child.members(sender.peer, receiver.peer)
    linked(sender, receiver, address)
    body = body_of(tmp_path, 200)
    for index in range(200):
        sender.send_file(receiver.peer, index, body, index * SEGMENT, SEGMENT)
    sender.channel.send(SendFrame(receiver.peer, HELLO))
    sender.channel.send(CancelSend(receiver.peer, ARTIFACT, tuple(range(20, 200))))
    assert receiver.wait_for(FrameArrived).frame == HELLO
    assert len(receiver.of_kind(SegmentArrived)) < 20
    sender.send_file(receiver.peer, 200, body, 0, SEGMENT)
    sender.wait_for(SegmentSent, lambda event: event.index == 200)
    assert [event.index for event in sender.of_kind(SegmentSent)] == [*range(20), 200]


def test_when_both_dial_at_once_one_link_remains(start: Start) -> None:
    children = sorted((start(1), start(2)), key=lambda child: child.peer)
    addresses = [child.listening() for child in children]
    small, large = children
    for child in children:
        child.members(small.peer, large.peer)
    for _ in range(5):
        small.dial(large.peer, addresses[1])
        large.dial(small.peer, addresses[0])
        ends = [child.wait_for(LinkOpened) for child in children]
        assert ends[0].dialled != ends[1].dialled
        small.channel.send(CloseLink(large.peer, "again"))
        assert small.wait_for(LinkClosed).reason == "again"
        large.wait_for(LinkClosed)
    for child in children:
        changes = [e for e in child.events if isinstance(e, LinkOpened | LinkClosed)]
        assert [type(e) for e in changes] == [LinkOpened, LinkClosed] * 5


def test_a_peer_that_dials_again_later_replaces_its_old_link(start: Start) -> None:
    """At first the second connection is taken for a crossing dial; later for that of a peer that lost its end."""
    child, old = played(start)
    host, _, port = child.listening().rpartition(":")
    while True:
        raw = socket.create_connection((host, int(port)))
        new = member_tls(2).dial(raw, child.peer, boottime() + 10)
        if isinstance(new, Opened):
            break
        assert new == Fault.DUPLICATE
        assert child.of_kind(LinkClosed) == []
        child.wait_for(BulkStats)
    assert child.wait_for(LinkClosed).reason.startswith("replaced")
    child.wait_for(LinkOpened)
    new.secure.sendall(encode_frame(HELLO))
    assert child.wait_for(FrameArrived).frame == HELLO
    new.secure.close()
    old.close()


def test_a_peer_struck_from_the_roster_loses_its_link_and_is_not_let_in_again(
    pair: tuple[BulkChild, BulkChild],
) -> None:
    first, second = pair
    address = first.of_kind(LinkOpened)[0].address
    second.members(second.peer)
    assert second.wait_for(LinkClosed).reason == Fault.NOT_A_MEMBER
    first.wait_for(LinkClosed)
    assert first.dial_fault(second.peer, address) == Fault.NOT_A_MEMBER


def test_a_non_member_that_dials_is_told_so(start: Start) -> None:
    server, client = start(1), start(2)
    address = server.listening()
    client.members(server.peer, client.peer)
    server.members(server.peer)
    assert client.dial_fault(server.peer, address) == Fault.NOT_A_MEMBER
    assert client.dial_fault(server.peer, "localhost:4200") == Fault.BAD_ADDRESS
    client.members(server.peer, identity(3).peer)
    assert client.dial_fault(identity(3).peer, address) == Fault.WRONG_PEER


def header_of(length: int, payload: int = 0) -> bytes:
    return length.to_bytes(4, "big") + payload.to_bytes(4, "big")


SEGMENT_HEADER = encode(SegmentData(ARTIFACT, 0, "", b""))
GARBAGE = {
    "random bytes": b"\xff" * 64,
    "an oversized header": header_of(MAX_FRAME + 1),
    "an oversized payload": header_of(8, 1 << 30),
    "a header that does not decode": encode_frame(b"\xc1garbage"),
    "a payload on a control frame": encode_frame(HELLO, b"surprise"),
    "a segment without payload": encode_frame(SEGMENT_HEADER),
}


def test_every_broken_frame_closes_its_link_by_name_and_nothing_else(start: Start) -> None:
    child = start(1)
    address = child.listening()
    child.members(child.peer, *(identity(number).peer for number in range(2, 9)))
    for number, (what, raw) in enumerate(GARBAGE.items(), start=2):
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host, int(port)))
        opened = member_tls(number).dial(connection, child.peer, boottime() + 10)
        assert isinstance(opened, Opened), what
        opened.secure.sendall(encode_frame(HELLO) + bytes(8) + raw)
        assert child.wait_for(FrameArrived).frame == HELLO
        closed = child.wait_for(LinkClosed)
        assert closed.reason.startswith("protocol error"), what
        assert closed.peer == identity(number).peer
        opened.secure.close()
    assert child.of_kind(SegmentArrived) == []
    assert list(child.spool.iterdir()) == []


def test_an_unfinished_payload_leaves_nothing_in_the_spool(start: Start) -> None:
    child, player = played(start)
    player.send(encode_frame(SEGMENT_HEADER, bytes(1000))[:-1])
    player.close()
    assert child.wait_for(LinkClosed).reason.startswith("connection lost")
    assert list(child.spool.iterdir()) == []


def test_a_daemon_that_stalls_stops_reading_but_not_writing(start: Start) -> None:
    """Nothing is lost, nothing piles up, and control frames still leave."""
    child, player = played(start)
    flood = encode_frame(encode(Have(ARTIFACT, tuple(range(4096)), 0)))
    player.secure.setblocking(False)
    sent, rest = 0, memoryview(flood)
    player.secure.settimeout(1.0)
    try:
        while sent < 20_000:
            rest = rest[player.secure.send(rest) :]
            if not rest:
                sent, rest = sent + 1, memoryview(flood)
    except TimeoutError:
        pass
    assert sent < 20_000
    player.secure.settimeout(20)
    child.channel.send(SendFrame(identity(2).peer, HELLO))
    expected = encode_frame(HELLO)
    assert player.secure.recv(len(expected)) == expected
    for _ in range(sent):
        child.wait_for(FrameArrived)
    player.send(bytes(rest) + encode_frame(encode(Credit(ARTIFACT, 1))))
    child.wait_for(FrameArrived, lambda event: event.frame == encode(Credit(ARTIFACT, 1)))
    assert child.of_kind(LinkClosed) == []
    player.close()


def test_the_spool_is_emptied_at_start_and_foreign_files_stay(start: Start, tmp_path: Path) -> None:
    spool = tmp_path / "spool1"
    spool.mkdir()
    (spool / "7.payload").write_bytes(b"left over")
    (spool / "notes.txt").write_text("mine")
    start(1).listening()
    assert [path.name for path in spool.iterdir()] == ["notes.txt"]


def test_a_port_in_use_is_reported_as_such(start: Start, tmp_path: Path) -> None:
    first = start(1)
    port = int(first.listening().rpartition(":")[2])
    assert start(2, port=port).wait_for(StartFailed).in_use
    failed = start(3, host="localhost").wait_for(StartFailed)
    assert not failed.in_use
    assert "localhost" in failed.detail
    (tmp_path / "spool4").write_text("a file where the spool should be")
    assert not start(4).wait_for(StartFailed).in_use


def test_the_child_ends_when_its_daemon_is_gone(start: Start) -> None:
    child, player = played(start)
    child.channel.close()
    assert child.process.wait(10) == 0
    player.close()


def test_the_child_ends_when_told_although_a_peer_does_not_read(start: Start, tmp_path: Path) -> None:
    child, player = played(start)
    body = body_of(tmp_path, 1000)
    for index in range(6):
        child.send_file(identity(2).peer, index, body, 0, 1000 * SEGMENT)
    child.channel.send(StopBulk())
    assert child.process.wait(10) == 0
    player.close()
