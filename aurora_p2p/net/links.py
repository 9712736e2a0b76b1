"""Which connections the process has and which it may have: members, places, budgets. Thread-safe; opens nothing.

    a peer:   (none) --may_prove--> PROVING --place--> LINKED --remove--> (none)
              (none) --judge------> RESERVED -place--> LINKED --remove--> (none)
    a lane:   (none) --may_join or judge--> JOINING --join--> part of its link

Invariants: at most one link per peer; when both sides dial at once, the connection dialled by the smaller id stays; a
peer that dials again later has lost its end, and its old link is replaced. A lane joins the very link that it names,
from the peer that dialled it. At most MAX_CONNECTIONS are open, of which lanes leave a quarter to links of others.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter
from collections.abc import Callable

from aurora_p2p.local.clock import boottime
from aurora_p2p.net.link import Connection, Link
from aurora_p2p.net.tls import HANDSHAKE_SECONDS, NEW_LINK, Fault
from aurora_p2p.types import PeerId
from aurora_p2p.wire.bulk import MAX_LANES

REPLACE_SECONDS = 1.0
"""For an old link's owner to notice that a new one takes its place."""
MAX_CONNECTIONS = 256
LANE_ROOM = 192
"""Connections beyond which no further lane opens: one link more is worth more than a faster one."""
MAX_HANDSHAKES = 64
MAX_PENDING_NEARBY = 4
"""Unfinished incoming handshakes per /24 or /48."""


class Links:
    """me: our own id. `changed` guards everything here, the lists of lanes too, and is notified when a lane goes."""

    def __init__(self, me: PeerId) -> None:
        self.changed = threading.Condition()
        self._me = me
        self._members: frozenset[PeerId] = frozenset()
        self._links: dict[PeerId, Link] = {}
        self._reserved: set[PeerId] = set()
        self._proving: set[PeerId] = set()
        self._open = self._joining = self._handshakes = 0
        self._nearby: Counter[str] = Counter()

    # ---- what is open

    def with_link(self, peer: PeerId, action: Callable[[Link], None]) -> None:
        """Act on a link while no lane of it can be disposed of; nothing happens when there is none."""
        with self.changed:
            link = self._links.get(peer)
            if link is not None:
                action(link)

    def wake(self) -> None:
        with self.changed:
            for link in self._links.values():
                link.wake()

    def states(self) -> list[tuple[PeerId, int, int]]:
        """(peer, round trip in microseconds or 0, connections) of each link."""
        with self.changed:
            return [(peer, link.rtt_microseconds, len(link.lanes)) for peer, link in self._links.items()]

    def set_members(self, members: frozenset[PeerId]) -> None:
        with self.changed:
            self._members = members
            for peer, link in self._links.items():
                if peer not in members:
                    link.close(Fault.NOT_A_MEMBER)

    # ---- handshakes

    def begin_handshake(self, near: str | None = None) -> bool:
        """Count one more, from a neighbourhood if it is incoming. False: too many are under way or open."""
        with self.changed:
            full = self._handshakes >= MAX_HANDSHAKES or (near is not None and self._nearby[near] >= MAX_PENDING_NEARBY)
            if full or self._open_count() >= MAX_CONNECTIONS:
                return False
            self._handshakes += 1
            if near is not None:
                self._nearby[near] += 1
            return True

    def end_handshake(self, near: str | None = None) -> None:
        with self.changed:
            self._handshakes -= 1
            if near is not None:
                self._nearby[near] -= 1
                self._nearby += Counter()  # drops zero counts

    def judge(self, peer: PeerId, name: bytes) -> Fault | None:
        """About a client that has proved its id; None reserves what it wants: a link, or a lane of the link `name`."""
        with self.changed:
            if peer not in self._members:
                return Fault.NOT_A_MEMBER
            if name != NEW_LINK:
                return self._admit_lane(peer, name)
            fault = self._objection(peer)
            if fault is None:
                self._reserved.add(peer)
            return fault

    def unjudge(self, peer: PeerId, name: bytes) -> None:
        """Release what judge has reserved."""
        with self.changed:
            if name == NEW_LINK:
                self._reserved.discard(peer)
            else:
                self._joined(peer, name)

    def may_prove(self, peer: PeerId) -> Fault | None:
        """About a connection of ours before its handshake; None until `unprove` or `place`."""
        with self.changed:
            if peer not in self._members:
                return Fault.NOT_A_MEMBER
            if peer in self._links or peer in self._reserved or peer in self._proving:
                return Fault.DUPLICATE
            if self._open_count() >= MAX_CONNECTIONS:
                return Fault.TOO_MANY
            self._proving.add(peer)
            return None

    def unprove(self, peer: PeerId) -> None:
        with self.changed:
            self._proving.discard(peer)

    def may_join(self, link: Link) -> Fault | None:
        """About a further lane of ours before its handshake; None until `unjudge` or `join`."""
        with self.changed:
            if link.closed:
                return Fault.NO_SUCH_LINK
            if self._open_count() >= LANE_ROOM:
                return Fault.TOO_MANY
            self._join(link)
            return None

    # ---- places

    def place(self, peer: PeerId, dialled: bool, make: Callable[[], tuple[Link, Connection]]) -> Link | None:
        """Give a connection that is authenticated its place; None when another link of the peer stands."""
        with self.changed:
            free = self.changed.wait_for(lambda: peer not in self._links, REPLACE_SECONDS)
            (self._proving if dialled else self._reserved).discard(peer)
            if not free or peer in self._reserved:
                return None
            link, lane = make()
            self._open += 1
            link.lanes.append(lane)
            self._links[peer] = link
            return link

    def join(self, peer: PeerId, name: bytes, make: Callable[[Link], Connection]) -> Link | None:
        """Give an authenticated lane its place; None when its link has ended."""
        with self.changed:
            link = self._joined(peer, name)
            if link is None:
                return None
            self._open += 1
            link.lanes.append(make(link))
            link.wake()  # the first lane may be rid of its segments
            return link

    def remove(self, link: Link, lane: Connection, reason: str) -> None:
        """A lane has ended; with the first one its link has. Then nobody can reach the lane any more."""
        with self.changed:
            first = link.lanes[:1] == [lane] and not link.closed
            link.lanes.remove(lane)
            self._open -= 1
            if first:
                del self._links[link.peer]
                link.end(reason)
                for other in link.lanes:
                    other.close(reason)
            else:
                link.wake()
            self.changed.notify_all()

    def wait_for_lack(self, link: Link) -> bool:
        """Wait until a link that we dialled wants a further lane; False when it has ended."""
        with self.changed:
            self.changed.wait_for(lambda: link.closed or len(link.lanes) + link.joining < link.wanted)
            return not link.closed

    # ---- under the lock

    def _objection(self, peer: PeerId) -> Fault | None:
        if self._open_count() >= MAX_CONNECTIONS:
            return Fault.TOO_MANY
        old = self._links.get(peer)
        crossing = peer in self._proving and self._me < peer
        young = old is not None and boottime() < old.opened_at + HANDSHAKE_SECONDS
        if peer == self._me or peer in self._reserved or crossing or young:
            return Fault.DUPLICATE
        if old is not None:
            old.close("replaced by a newer connection")
        return None

    def _admit_lane(self, peer: PeerId, name: bytes) -> Fault | None:
        link = self._links.get(peer)
        if link is None or link.name != name or link.dialled:
            return Fault.NO_SUCH_LINK
        if len(link.lanes) + link.joining >= MAX_LANES or self._open_count() >= LANE_ROOM:
            return Fault.TOO_MANY
        self._join(link)
        return None

    def _join(self, link: Link) -> None:
        link.joining += 1
        self._joining += 1

    def _joined(self, peer: PeerId, name: bytes) -> Link | None:
        """The handshake of a lane is over; its link, if that still stands."""
        self._joining -= 1
        link = self._links.get(peer)
        if link is None or link.name != name:
            return None
        link.joining -= 1
        return link

    def _open_count(self) -> int:
        return self._open + self._joining + len(self._reserved)


def neighbourhood(host: str) -> str | None:
    """The /24 or /48 that shares one budget of pending handshakes; None for loopback, which has no such limit."""
    ip = ipaddress.ip_address(host)
    if ip.is_loopback:
        return None
    return str(ipaddress.ip_network((ip, 24 if ip.version == 4 else 48), strict=False))
