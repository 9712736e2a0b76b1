"""The bulk child: sockets, TLS, rates and spool of the data plane. Run as `python -m aurora_p2p.net.bulk --fd N`.

A process of its own, because TLS threads beside libp2p's loop raise its tick lag a hundredfold. It obeys BulkCommands,
reports BulkEvents (wire/bulk.py), and knows nothing of artifacts: it moves frames and files.

    a peer:   (none) --dial: connected--> PROVING --accepted--> LINKED --> (none)
              (none) --accept: proved---> RESERVED --verdict sent--> LINKED --> (none)

Invariants: at most one link per peer is LINKED; LinkOpened and LinkClosed alternate per peer; every DialPeer is
answered by LinkOpened or DialFailed. When both sides dial at once, the connection dialled by the smaller id stays. A
peer that dials again later has lost its end: the old link is replaced.

When the daemon's socket closes, the process ends at once.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import resource
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import WireError
from aurora_p2p.local import faults
from aurora_p2p.local.channel import Channel
from aurora_p2p.local.child import inherited_channel
from aurora_p2p.local.clock import boottime
from aurora_p2p.net.addresses import join_bulk, split_bulk
from aurora_p2p.net.buckets import Bucket
from aurora_p2p.net.inbound import Spool
from aurora_p2p.net.link import Link, Plane
from aurora_p2p.net.outbox import Outbox
from aurora_p2p.net.tls import HANDSHAKE_SECONDS, Fault, Tls
from aurora_p2p.types import PeerId
from aurora_p2p.wire.bulk import (
    BulkCommand,
    BulkStart,
    CancelSend,
    CloseLink,
    DialFailed,
    DialPeer,
    LinkClosed,
    LinkOpened,
    Listening,
    SegmentFailed,
    SendFile,
    SendFrame,
    SetMembers,
    SetRates,
    StartFailed,
    StopBulk,
)
from aurora_p2p.wire.frame import encode_frame

CONNECT_SECONDS = 2.0
"""For the TCP handshake: one lost SYN is repeated after 1 s."""
REPLACE_SECONDS = 1.0
"""For an old link's owner to notice that a new one takes its place."""
FLUSH_SECONDS = 0.5
MAX_LINKS = 256
MAX_HANDSHAKES = 64
MAX_PENDING_NEARBY = 4
"""Unfinished incoming handshakes per /24 or /48."""
BACKLOG = 64
FEW_DESCRIPTORS_SECONDS = 0.1
"""Pause of the listener when the process has run out of file descriptors."""
BUFFER_SECONDS = 0.1
"""Under a cap, a socket buffers at most so much: bytes that wait in kernels can be neither cancelled nor overtaken."""
MIN_BUFFER = 8 * 1024


class Bulk:
    """The process's links. Methods are called from the command thread, the listener and the links' owners."""

    def __init__(self, channel: Channel[BulkCommand], start: BulkStart) -> None:
        """Raises OSError when the spool cannot be used."""
        now = boottime()
        self.outbox = Outbox(channel, self._wake_all)
        self._plane = Plane(
            self.outbox, Spool(Path(start.spool)), Bucket(start.up_rate, now), Bucket(start.down_rate, now)
        )
        self._tls = Tls.create(Identity(start.seed), start.swarm)
        self._me = self._tls.identity.peer
        self._changed = threading.Condition()
        self._members: frozenset[PeerId] = frozenset()
        self._links: dict[PeerId, Link] = {}
        self._reserved: set[PeerId] = set()
        self._proving: set[PeerId] = set()
        self._handshakes = 0
        self._nearby: Counter[str] = Counter()

    def handle(self, command: BulkCommand) -> None:
        """Carry out one command; never waits for a peer."""
        match command:
            case SendFrame(peer, frame):
                self._with_link(peer, lambda link: self._send_frame(link, frame))
            case SendFile():
                self._with_link(command.peer, lambda link: self._send_file(link, command))
            case CancelSend(peer, artifact, segments):
                self._with_link(peer, lambda link: link.outbound.cancel(artifact, segments))
            case CloseLink(peer, reason):
                self._with_link(peer, lambda link: link.close(reason))
            case DialPeer():
                self._start_dial(command)
            case SetMembers(peers):
                self._set_members(frozenset(peers))
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
            for option, rate in ((socket.SO_SNDBUF, self._plane.up.rate), (socket.SO_RCVBUF, self._plane.down.rate)):
                if rate:
                    sock.setsockopt(socket.SOL_SOCKET, option, max(MIN_BUFFER, int(rate * BUFFER_SECONDS)))

    def _with_link(self, peer: PeerId, action: Callable[[Link], None]) -> None:
        """Act on a link while it cannot be disposed of; commands for a link that is gone are void."""
        with self._changed:
            link = self._links.get(peer)
            if link is not None:
                action(link)
                link.wake()

    def _send_frame(self, link: Link, frame: bytes) -> None:
        if not link.outbound.add_control(encode_frame(frame)):
            link.close("the peer does not read its control frames")

    def _send_file(self, link: Link, command: SendFile) -> None:
        if not link.outbound.add_segment(command):
            self.outbox.put(SegmentFailed(link.peer, command.artifact, command.index, "the peer's queue is full"))

    def _set_members(self, members: frozenset[PeerId]) -> None:
        with self._changed:
            self._members = members
            for peer, link in self._links.items():
                if peer not in members:
                    link.close(Fault.NOT_A_MEMBER)
        self.outbox.forget_except(members)

    def _wake_all(self) -> None:
        with self._changed:
            for link in self._links.values():
                link.wake()

    def _welcome(self, raw: socket.socket, host: str, port: int) -> None:
        near = neighbourhood(host)
        with self._changed:
            full = self._handshakes >= MAX_HANDSHAKES or self._open_count() >= MAX_LINKS
            if full or (near is not None and self._nearby[near] >= MAX_PENDING_NEARBY):
                raw.close()
                self.outbox.refused(Fault.TOO_MANY)
                return
            self._handshakes += 1
            if near is not None:
                self._nearby[near] += 1
        threading.Thread(target=self._accept, args=(raw, join_bulk(host, port), near), daemon=True).start()

    def _accept(self, raw: socket.socket, address: str, near: str | None) -> None:
        reserved: list[PeerId] = []

        def judge(peer: PeerId) -> Fault | None:
            fault = self._reserve(peer)
            reserved.extend([peer] if fault is None else [])
            return fault

        opened = self._tls.accept(raw, judge, boottime() + HANDSHAKE_SECONDS)
        with self._changed:
            self._handshakes -= 1
            if near is not None:
                self._nearby[near] -= 1
                self._nearby += Counter()  # drops zero counts
            if isinstance(opened, Fault):
                self._reserved.difference_update(reserved)
        if isinstance(opened, Fault):
            self.outbox.refused(opened)
        else:
            self._own(opened[1], opened[0], address, dialled=False)

    def _reserve(self, peer: PeerId) -> Fault | None:
        """Judge a client that has proved its id; None reserves the place of its link."""
        with self._changed:
            fault = self._objection(peer)
            if fault is None:
                self._reserved.add(peer)
            return fault

    def _objection(self, peer: PeerId) -> Fault | None:
        if peer not in self._members:
            return Fault.NOT_A_MEMBER
        if self._open_count() >= MAX_LINKS:
            return Fault.TOO_MANY
        old = self._links.get(peer)
        crossing = peer in self._proving and self._me < peer
        young = old is not None and boottime() < old.opened_at + HANDSHAKE_SECONDS
        if peer == self._me or peer in self._reserved or crossing or young:
            return Fault.DUPLICATE
        if old is not None:
            old.close("replaced by a newer connection")
        return None

    def _open_count(self) -> int:
        return len(self._links) + len(self._reserved)

    def _start_dial(self, command: DialPeer) -> None:
        with self._changed:
            full = self._handshakes >= MAX_HANDSHAKES
            self._handshakes += not full
        if full:
            self.outbox.put(DialFailed(command.peer, command.address, Fault.TOO_MANY))
        else:
            threading.Thread(target=self._dial, args=(command,), daemon=True).start()

    def _dial(self, command: DialPeer) -> None:
        opened = self._open(command)
        with self._changed:
            self._handshakes -= 1
        if isinstance(opened, Fault) or not self._own(command.peer, opened, command.address, dialled=True):
            fault = opened if isinstance(opened, Fault) else Fault.DUPLICATE
            self.outbox.put(DialFailed(command.peer, command.address, fault))

    def _open(self, command: DialPeer) -> ssl.SSLSocket | Fault:
        raw = self._connect(command.address)
        if isinstance(raw, Fault):
            return raw
        peer = command.peer
        with self._changed:
            fault = self._obstacle(peer)
            if fault is not None:
                raw.close()
                return fault
            self._proving.add(peer)
        opened = self._tls.dial(raw, peer, boottime() + HANDSHAKE_SECONDS)
        if isinstance(opened, Fault):
            with self._changed:
                self._proving.discard(peer)
        return opened

    def _obstacle(self, peer: PeerId) -> Fault | None:
        """Why a connection that we dialled must not go on."""
        if peer not in self._members:
            return Fault.NOT_A_MEMBER
        if peer in self._links or peer in self._reserved or peer in self._proving:
            return Fault.DUPLICATE
        return Fault.TOO_MANY if self._open_count() >= MAX_LINKS else None

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

    def _own(self, peer: PeerId, secure: ssl.SSLSocket, address: str, *, dialled: bool) -> bool:
        """Open the link and serve it to its end, in this thread. False when another link of the peer stands."""
        with self._changed:
            free = self._changed.wait_for(lambda: peer not in self._links, REPLACE_SECONDS)
            (self._proving if dialled else self._reserved).discard(peer)
            if not free or peer in self._reserved:
                secure.close()
                return False
            link = self._links[peer] = Link(peer, secure, self._plane)
            self.outbox.put(LinkOpened(peer, address, dialled))
        reason = link.run()
        with self._changed:
            del self._links[peer]
            self.outbox.put(LinkClosed(peer, reason[:512]))
            self._changed.notify_all()
        link.dispose()
        return True


def neighbourhood(host: str) -> str | None:
    """The /24 or /48 that shares one budget of pending handshakes; None for loopback, which has no such limit."""
    ip = ipaddress.ip_address(host)
    if ip.is_loopback:
        return None
    return str(ipaddress.ip_network((ip, 24 if ip.version == 4 else 48), strict=False))


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
    wanted = 4 * MAX_LINKS + 2 * MAX_HANDSHAKES
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


if __name__ == "__main__":
    main()
