"""The bulk child: sockets, TLS, rates and spool of the data plane. Run as `python -m aurora_p2p.net.bulk --fd N`.

A process of its own, because TLS threads beside libp2p's loop raise its tick lag a hundredfold. It obeys BulkCommands,
reports BulkEvents (wire/bulk.py), and knows nothing of artifacts: it moves frames and files.

Threads: one takes commands, one writes events, one listens; one for each handshake, which then owns its connection
(lane.py); one for each link that we dialled and that shall have several lanes, which opens them one after the other.
links.py decides what may be opened.

Invariants: LinkOpened and LinkClosed alternate per peer; every DialPeer is answered by LinkOpened or DialFailed.
When the daemon's socket closes, the process ends at once.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import resource
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import WireError
from aurora_p2p.local import faults
from aurora_p2p.local.channel import Channel
from aurora_p2p.local.child import inherited_channel
from aurora_p2p.local.clock import boottime
from aurora_p2p.net.addresses import join_bulk, split_bulk
from aurora_p2p.net.buckets import Bucket
from aurora_p2p.net.lane import Lane
from aurora_p2p.net.link import Link, Plane
from aurora_p2p.net.links import MAX_CONNECTIONS, MAX_HANDSHAKES, Links, neighbourhood
from aurora_p2p.net.outbox import Outbox
from aurora_p2p.net.spool import Spool
from aurora_p2p.net.tls import HANDSHAKE_SECONDS, Fault, Opened, Tls
from aurora_p2p.types import PeerId
from aurora_p2p.wire.bulk import (
    BulkCommand,
    BulkStart,
    CancelSend,
    CloseLink,
    DialFailed,
    DialPeer,
    FreeSpool,
    Listening,
    SegmentFailed,
    SendFile,
    SendFrame,
    SetLanes,
    SetMembers,
    SetRates,
    StartFailed,
    StopBulk,
)
from aurora_p2p.wire.frame import encode_frame

CONNECT_SECONDS = 2.0
"""For the TCP handshake: one lost SYN is repeated after 1 s."""
FLUSH_SECONDS = 0.5
BACKLOG = 64
FEW_DESCRIPTORS_SECONDS = 0.1
"""Pause of the listener when the process has run out of file descriptors."""
BUFFER_SECONDS = 0.1
"""Under a cap, a socket buffers at most so much: bytes that wait in kernels can be neither cancelled nor overtaken."""
MIN_BUFFER = 8 * 1024
UNSENT_BYTES = 1 << 17
"""What a kernel may hold unsent of one lane: more would wait behind a slow lane while a faster one is idle."""
TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)
"""linux/tcp.h"""
SHORT_LIFE_SECONDS = 10.0
"""A lane that ends sooner counts as one that did not open."""
MAX_LANE_PAUSE_SECONDS = 60.0
"""Between two attempts to open a lane: 1 s after the first that failed, then twice as long each time."""


class Bulk:
    """The process's links. Methods are called from the command thread, the listener and the lanes' owners."""

    def __init__(self, channel: Channel[BulkCommand], start: BulkStart) -> None:
        """Raises OSError when the spool cannot be used."""
        now = boottime()
        self._tls = Tls.create(Identity(start.seed), start.swarm)
        self._links = Links(self._tls.identity.peer)
        self.outbox = Outbox(channel, self._links.wake, self._links.states)
        self._plane = Plane(
            self.outbox, Spool(Path(start.spool)), Bucket(start.up_rate, now), Bucket(start.down_rate, now)
        )

    def handle(self, command: BulkCommand) -> None:
        """Carry out one command; never waits for a peer."""
        match command:
            case SendFrame(peer, frame):
                self._links.with_link(peer, lambda link: _send_frame(link, frame))
            case SendFile():
                self._links.with_link(command.peer, lambda link: _send_file(link, command))
            case CancelSend(peer, artifact, segments):
                self._links.with_link(peer, lambda link: link.outbound.cancel(artifact, segments))
            case FreeSpool(paths):
                self._release(paths)
            case CloseLink(peer, reason):
                self._links.with_link(peer, lambda link: link.close(reason))
            case DialPeer():
                self._start_dial(command)
            case SetLanes(peer, lanes):
                self._links.with_link(peer, lambda link: self._want(link, lanes))
            case SetMembers(peers):
                self._links.set_members(frozenset(peers))
                self.outbox.forget_except(frozenset(peers))
            case SetRates(up_rate, down_rate):
                self._plane.up.set_rate(up_rate, boottime())
                self._plane.down.set_rate(down_rate, boottime())
            case _:
                raise WireError(f"{type(command).__name__} is not expected here")

    def listen(self, listener: socket.socket) -> None:
        """Accept for ever."""
        while True:
            try:
                raw, remote = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    time.sleep(FEW_DESCRIPTORS_SECONDS)
                continue
            self._welcome(raw, remote[0], remote[1])

    def tune(self, sock: socket.socket) -> None:
        """Before listen or connect: small buffers under a cap, no Nagle delay."""
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            for option, rate in ((socket.SO_SNDBUF, self._plane.up.rate), (socket.SO_RCVBUF, self._plane.down.rate)):
                if rate:
                    sock.setsockopt(socket.SOL_SOCKET, option, max(MIN_BUFFER, int(rate * BUFFER_SECONDS)))

    def _release(self, paths: Sequence[str]) -> None:
        full = self._plane.spool.full
        for path in paths:
            self._plane.spool.release(path)
        if full and not self._plane.spool.full:
            self._links.wake()

    # ---- connections that come

    def _welcome(self, raw: socket.socket, host: str, port: int) -> None:
        near = neighbourhood(host)
        if not self._links.begin_handshake(near):
            raw.close()
            self.outbox.refused(Fault.TOO_MANY)
            return
        threading.Thread(target=self._accept, args=(raw, join_bulk(host, port), near), daemon=True).start()

    def _accept(self, raw: socket.socket, address: str, near: str | None) -> None:
        reserved: list[tuple[PeerId, bytes]] = []

        def judge(peer: PeerId, name: bytes) -> Fault | None:
            fault = self._links.judge(peer, name)
            reserved.extend([(peer, name)] if fault is None else [])
            return fault

        opened = self._tls.accept(raw, judge, boottime() + HANDSHAKE_SECONDS)
        self._links.end_handshake(near)
        if isinstance(opened, Fault):
            for peer, name in reserved:
                self._links.unjudge(peer, name)
            self.outbox.refused(opened)
        elif opened.joins:
            self._own_lane(opened)
        else:
            self._own(opened, address, dialled=False, lanes=1)

    # ---- connections that we open

    def _start_dial(self, command: DialPeer) -> None:
        if self._links.begin_handshake():
            threading.Thread(target=self._dial, args=(command,), daemon=True).start()
        else:
            self.outbox.put(DialFailed(command.peer, command.address, Fault.TOO_MANY))

    def _dial(self, command: DialPeer) -> None:
        opened = self._open(command)
        self._links.end_handshake()
        if isinstance(opened, Fault):
            self.outbox.put(DialFailed(command.peer, command.address, opened))
        elif not self._own(opened, command.address, dialled=True, lanes=command.lanes):
            self.outbox.put(DialFailed(command.peer, command.address, Fault.DUPLICATE))

    def _open(self, command: DialPeer) -> Opened | Fault:
        raw = self._connect(command.address)
        if isinstance(raw, Fault):
            return raw
        fault = self._links.may_prove(command.peer)
        if fault is not None:
            raw.close()
            return fault
        opened = self._tls.dial(raw, command.peer, boottime() + HANDSHAKE_SECONDS)
        if isinstance(opened, Fault):
            self._links.unprove(command.peer)
        return opened

    def _connect(self, address: str) -> socket.socket | Fault:
        try:
            host, port = split_bulk(address)
        except WireError:
            return Fault.BAD_ADDRESS
        raw = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.tune(raw)
        raw.settimeout(CONNECT_SECONDS)
        try:
            faults.connecting()
            raw.connect((host, port))
        except OSError:
            raw.close()
            return Fault.UNREACHABLE
        return raw

    def _want(self, link: Link, lanes: int) -> None:
        """Under the links' lock. A lane that is no longer wanted stays: closing it would lose what is on its way."""
        link.wanted = lanes
        if link.dialled and lanes > 1 and not link.opening:
            link.opening = True
            threading.Thread(target=self._open_lanes, args=(link,), daemon=True).start()
        self._links.changed.notify_all()

    def _open_lanes(self, link: Link) -> None:
        """Open what a link lacks, one after the other, until it ends."""
        while self._links.wait_for_lack(link):
            if link.short_lives:
                pause = min(2.0 ** (link.short_lives - 1), MAX_LANE_PAUSE_SECONDS)
                with self._links.changed:
                    self._links.changed.wait_for(lambda: link.closed, pause)
            opened = self._open_lane(link)
            if isinstance(opened, Fault):
                link.short_lives += 1
            else:
                threading.Thread(target=self._own_lane, args=(opened,), daemon=True).start()

    def _open_lane(self, link: Link) -> Opened | Fault:
        if not self._links.begin_handshake():
            return Fault.TOO_MANY
        try:
            raw = self._connect(link.address)
            if isinstance(raw, Fault):
                return raw
            fault = self._links.may_join(link)
            if fault is not None:
                raw.close()
                return fault
            opened = self._tls.dial(raw, link.peer, boottime() + HANDSHAKE_SECONDS, link.name)
            if isinstance(opened, Fault):
                self._links.unjudge(link.peer, link.name)
            return opened
        finally:
            self._links.end_handshake()

    # ---- connections that are open

    def _own(self, opened: Opened, address: str, *, dialled: bool, lanes: int) -> bool:
        """Open the link and serve its first lane to its end, in this thread. False when another link stands."""

        def make() -> tuple[Link, Lane]:
            link = Link(opened.peer, opened.link, address, self._plane, dialled=dialled)
            made.append(Lane(link, opened.secure, first=True))
            return link, made[0]

        made: list[Lane] = []
        link = self._links.place(opened.peer, dialled, make)
        if link is None:
            opened.secure.close()
            return False
        if lanes > 1:
            self._links.with_link(link.peer, lambda current: self._want(current, lanes))
        self._serve(link, made[0])
        return True

    def _own_lane(self, opened: Opened) -> None:
        """Serve a further lane to its end, in this thread."""

        def make(link: Link) -> Lane:
            made.append(Lane(link, opened.secure, first=False))
            return made[0]

        made: list[Lane] = []
        link = self._links.join(opened.peer, opened.link, make)
        if link is None:
            opened.secure.close()
            return
        self._serve(link, made[0])
        link.short_lives = link.short_lives + 1 if boottime() < made[0].opened_at + SHORT_LIFE_SECONDS else 0

    def _serve(self, link: Link, lane: Lane) -> None:
        self.outbox.touched()
        reason = lane.run()
        if lane.broken:  # whoever breaks the protocol on one connection loses them all
            self._links.with_link(link.peer, lambda current: current.close(reason) if current is link else None)
        self._links.remove(link, lane, reason)
        self.outbox.touched()
        lane.dispose()


def _send_frame(link: Link, frame: bytes) -> None:
    if not link.outbound.add_control(encode_frame(frame)):
        link.close("the peer does not read its control frames")
    link.lanes[0].wake()


def _send_file(link: Link, command: SendFile) -> None:
    if not link.outbound.add_segment(command):
        link.emit(SegmentFailed(link.peer, command.artifact, command.index, "the peer's queue is full"))


def main() -> None:
    faults.arm()
    channel: Channel[BulkCommand] = inherited_channel(BulkCommand)  # type: ignore[arg-type]
    with contextlib.suppress(EOFError):
        _serve(channel)
    # Owners may sit in the middle of TLS calls: nothing of theirs has to be saved, and nothing may delay the end.
    os._exit(0)


def _serve(channel: Channel[BulkCommand]) -> None:
    start, _ = channel.receive()
    if not isinstance(start, BulkStart):
        raise WireError(f"the first command is a {type(start).__name__}, not BulkStart")
    _allow_descriptors()
    try:
        bulk = Bulk(channel, start)
        listener = _listener(bulk, start)
    except (OSError, ValueError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        channel.send(StartFailed(in_use, str(error)))
        return
    bulk.outbox.put(Listening(listener.getsockname()[1]))
    threading.Thread(target=_write_events, args=(bulk.outbox,), daemon=True).start()
    threading.Thread(target=bulk.listen, args=(listener,), daemon=True).start()
    while not isinstance(command := channel.receive()[0], StopBulk):
        bulk.handle(command)
    bulk.outbox.flush(FLUSH_SECONDS)


def _listener(bulk: Bulk, start: BulkStart) -> socket.socket:
    host = ipaddress.ip_address(start.listen_host)
    listener = socket.socket(socket.AF_INET if host.version == 4 else socket.AF_INET6)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bulk.tune(listener)
    listener.bind((str(host), start.listen_port))
    listener.listen(BACKLOG)
    return listener


def _write_events(outbox: Outbox) -> None:
    with contextlib.suppress(EOFError):
        outbox.run()
    os._exit(0)


def _allow_descriptors() -> None:
    """Two descriptors per link, one per payload on its way to the spool."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * MAX_CONNECTIONS + 2 * MAX_HANDSHAKES
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


if __name__ == "__main__":
    main()
