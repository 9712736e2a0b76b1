"""Which connections may be opened, without sockets: places, lanes, budgets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aurora_p2p.net.buckets import Bucket
from aurora_p2p.net.link import Connection, Link, Plane
from aurora_p2p.net.links import LANE_ROOM, MAX_CONNECTIONS, MAX_HANDSHAKES, MAX_PENDING_NEARBY, Links
from aurora_p2p.net.spool import FULL_BYTES, Incoming, Spool
from aurora_p2p.net.tls import NEW_LINK, Fault
from aurora_p2p.types import ArtifactId, PeerId
from aurora_p2p.wire.bulk import MAX_LANES, BulkEvent, LinkClosed, LinkOpened, SegmentArrived, SegmentFailed
from tests.net.bulk_child import identity

ME = identity(0).peer
PEERS = [PeerId(f"peer {number}") for number in range(300)]


class Recorder:
    def __init__(self) -> None:
        self.congested = False
        self.events: list[BulkEvent] = []

    def put(self, event: BulkEvent) -> None:
        self.events.append(event)


class Wire:
    """A lane that is asked to wake and to close."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def wake(self) -> None:
        pass

    def close(self, reason: str) -> None:
        self.reasons.append(reason)


class Places:
    def __init__(self, folder: Path) -> None:
        self.recorder = Recorder()
        self.plane = Plane(self.recorder, Spool(folder), Bucket(0, 0.0), Bucket(0, 0.0))
        self.links = Links(ME)
        self.links.set_members(frozenset(PEERS))

    def open(self, peer: PeerId, *, dialled: bool = False) -> tuple[Link, Wire]:
        fault = self.links.may_prove(peer) if dialled else self.links.judge(peer, NEW_LINK)
        assert fault is None
        wire, name = Wire(), os.urandom(32)

        def make() -> tuple[Link, Connection]:
            return Link(peer, name, "127.0.0.1:1", self.plane, dialled=dialled), wire

        link = self.links.place(peer, dialled, make)
        assert link is not None
        return link, wire

    def join(self, link: Link) -> Wire:
        assert self.links.judge(link.peer, link.name) is None
        wire = Wire()
        assert self.links.join(link.peer, link.name, lambda current: wire) is link
        return wire


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_lanes_leave_room_for_links_of_others(places: Places) -> None:
    for peer in PEERS[: LANE_ROOM - 1]:
        link, _ = places.open(peer)
    places.join(link)
    assert places.links.judge(link.peer, link.name) == Fault.TOO_MANY
    for peer in PEERS[LANE_ROOM:MAX_CONNECTIONS]:
        places.open(peer)
    assert places.links.judge(PEERS[-1], NEW_LINK) == Fault.TOO_MANY
    assert places.links.may_prove(PEERS[-1]) == Fault.TOO_MANY
    assert not places.links.begin_handshake()


def test_a_place_that_a_lane_gives_up_can_be_taken_again(places: Places) -> None:
    link, _ = places.open(PEERS[0])
    lanes = [places.join(link) for _ in range(MAX_LANES - 1)]
    assert places.links.judge(link.peer, link.name) == Fault.TOO_MANY
    places.links.remove(link, lanes[3], "gone")
    assert places.links.judge(link.peer, link.name) is None
    assert places.links.judge(link.peer, link.name) == Fault.TOO_MANY
    places.links.unjudge(link.peer, link.name)
    places.join(link)
    assert places.recorder.events == [LinkOpened(PEERS[0], "127.0.0.1:1", False)]


def test_only_the_side_that_dialled_a_link_may_add_lanes(places: Places) -> None:
    link, _ = places.open(PEERS[0], dialled=True)
    assert places.links.judge(link.peer, link.name) == Fault.NO_SUCH_LINK
    assert places.links.may_join(link) is None


def test_nothing_is_reported_of_a_link_that_has_ended_and_its_lanes_are_told(places: Places, tmp_path: Path) -> None:
    link, first = places.open(PEERS[0])
    lane = places.join(link)
    places.links.remove(link, first, "closed by the peer")
    assert lane.reasons == ["closed by the peer"]
    incoming = Incoming(places.plane.spool, 4)
    incoming.write(memoryview(b"late"))
    digest = incoming.finish()
    link.emit(SegmentFailed(link.peer, ArtifactId(bytes(32)), 0, "late"))
    link.emit(SegmentArrived(link.peer, b"frame", str(incoming.path), 4, digest))
    assert [type(event) for event in places.recorder.events] == [LinkOpened, LinkClosed]
    assert Incoming(places.plane.spool, 1).path == incoming.path  # its file is free again
    assert places.links.judge(link.peer, link.name) == Fault.NO_SUCH_LINK
    places.links.remove(link, lane, "its link has ended")
    places.open(PEERS[0])


def test_handshakes_are_bounded_and_those_of_one_neighbourhood_more_so(places: Places) -> None:
    begun = [places.links.begin_handshake("192.0.2.0/24") for _ in range(MAX_PENDING_NEARBY + 1)]
    assert begun == [True] * MAX_PENDING_NEARBY + [False]
    places.links.end_handshake("192.0.2.0/24")
    assert places.links.begin_handshake("192.0.2.0/24")
    assert [places.links.begin_handshake() for _ in range(MAX_HANDSHAKES)].count(True) == MAX_HANDSHAKES - 4


def test_reading_pauses_while_too_much_is_in_the_spool(places: Places) -> None:
    lent = []
    while not places.plane.congested:
        incoming = Incoming(places.plane.spool, 1 << 20)
        incoming.write(memoryview(bytes(1 << 20)))
        incoming.finish()
        lent.append(incoming.path)
    assert len(lent) == FULL_BYTES >> 20
    places.plane.spool.release(str(lent[0]))
    assert not places.plane.congested
