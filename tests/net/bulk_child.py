"""A real bulk child process driven through its pipe, for the tests of the data plane."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from aurora_p2p.crypto.identity import Identity, peer_id_of
from aurora_p2p.local.channel import Channel
from aurora_p2p.net.tls import Tls
from aurora_p2p.types import ArtifactId, PeerId, SwarmId
from aurora_p2p.wire.bulk import (
    BulkEvent,
    BulkStart,
    DialFailed,
    DialPeer,
    LinkOpened,
    Listening,
    SegmentArrived,
    SendFile,
    SetMembers,
    StopBulk,
)
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.exchange import SegmentData

SWARM = SwarmId(peer_id_of(b"\x07" * 32))
ARTIFACT = ArtifactId(b"\x11" * 32)
E = TypeVar("E")


def identity(number: int) -> Identity:
    return Identity(hashlib.sha256(bytes([number])).digest())


class BulkChild:
    """`events` keeps everything received; `wait_for` reads until an event of a kind (and a condition) comes."""

    def __init__(
        self, number: int, folder: Path, *, up: int = 0, down: int = 0, port: int = 0, host: str = "127.0.0.1"
    ) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(30)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aurora_p2p.net.bulk", "--fd", str(theirs.fileno())], pass_fds=(theirs.fileno(),)
        )
        theirs.close()
        self.identity = identity(number)
        self.peer = self.identity.peer
        self.spool = folder / f"spool{number}"
        self.channel: Channel[BulkEvent] = Channel(ours, BulkEvent)  # type: ignore[arg-type]
        self.events: list[BulkEvent] = []
        self.channel.send(BulkStart(self.identity.seed, SWARM, host, port, up, down, str(self.spool)))

    def listening(self) -> str:
        """Its address, once it listens."""
        known = self.of_kind(Listening)
        return f"127.0.0.1:{(known[0] if known else self.wait_for(Listening)).port}"

    def wait_for(self, kind: type[E], condition: Callable[[E], bool] = lambda event: True) -> E:
        while True:
            event, _ = self.channel.receive()
            self.events.append(event)
            if isinstance(event, kind) and condition(event):
                return event

    def seen(self, kind: type[E], condition: Callable[[E], bool]) -> E:
        """Like wait_for, but an event that has come already counts as well."""
        return next(filter(condition, self.of_kind(kind)), None) or self.wait_for(kind, condition)

    def members(self, *peers: PeerId) -> None:
        self.channel.send(SetMembers(peers))

    def dial(self, peer: PeerId, address: str, *, lanes: int = 1) -> None:
        self.channel.send(DialPeer(peer, address, lanes))

    def dial_fault(self, peer: PeerId, address: str) -> str:
        self.dial(peer, address)
        return self.wait_for(DialFailed).reason

    def send_file(self, peer: PeerId, index: int, path: Path, offset: int, length: int) -> None:
        payload = path.read_bytes()[offset : offset + length]
        frame = encode(SegmentData(ARTIFACT, index, "", b""))
        digest = blake3(payload).digest()
        self.channel.send(SendFile(peer, frame, ARTIFACT, index, str(path), offset, length, digest))

    def take_segments(self, count: int) -> list[SegmentArrived]:
        """All segments so far, as soon as there are `count`."""
        while len(self.of_kind(SegmentArrived)) < count:
            self.wait_for(SegmentArrived)
        return self.of_kind(SegmentArrived)

    def of_kind(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def close(self) -> None:
        """Ends the child the polite way; its exit status must be 0."""
        if self.process.poll() is None:
            with contextlib.suppress(EOFError):
                self.channel.send(StopBulk())
        status = self.process.wait(10)
        self.channel.close()
        assert status == 0


def linked(first: BulkChild, second: BulkChild, address: str, *, lanes: int = 1) -> None:
    """`first` dials `second`; returns when both report the link."""
    first.dial(second.peer, address, lanes=lanes)
    first.wait_for(LinkOpened)
    second.wait_for(LinkOpened)


def member_tls(number: int) -> Tls:
    """TLS of a peer that the test plays itself."""
    return Tls.create(identity(number), SWARM)
