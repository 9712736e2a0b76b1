"""Our uplink: what is sent next, to whom.

A segment waits here, where it can still be cancelled and overtaken, and is handed to the driver only when one of few
places is free:   QUEUED (a peer's request) -> SENDING -> out | failed | cancelled.
The origin's pushes are made on demand and never queue.
Order: first copies (pushes), then live artifacts, then catch-up; within those what nobody else of our region has, for
our region; then for whoever is behind a NAT and has the fewest to ask; then what was not served before, and peers in
turn. A peer that takes nothing for a while keeps its places without counting against the others.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from aurora_p2p.swarm.catalog import Holding
from aurora_p2p.swarm.events import CancelSend, Refused, SegmentOut, SendFailed, SendSegment
from aurora_p2p.swarm.link import MAX_QUEUE, UNKNOWN_RATE, Link, Sending, Upload
from aurora_p2p.swarm.overseas import asked_for
from aurora_p2p.swarm.places import Places
from aurora_p2p.swarm.refusals import Refusal
from aurora_p2p.swarm.table import Table
from aurora_p2p.types import ArtifactId
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.exchange import Cancel, Reject, RequestSegments, SegmentData

CATCH_UP_SHARE = 0.3
"""Of our uplink that late joiners may have while a live artifact is in flight."""
PLACES_PER_LINK = 2
"""Inside a region: one on the wire, one behind it."""
PLACES_PER_LONG_LINK = 8
"""Across regions: as many as it has connections."""


class Uplink:
    def __init__(self, table: Table, up_kbps: int) -> None:
        self._table = table
        self._places = Places(up_kbps * 125.0 or UNKNOWN_RATE)
        self._catch_up_at = float("-inf")

    @property
    def queued(self) -> int:
        """Segments that wait or are on their way, over all links: the load that a Have tells."""
        return sum(len(link.queue) + len(link.sending) for link in self._table.links.values())

    def granted(self, link: Link, artifact: ArtifactId, segments: int) -> None:
        """The peer will take so many more pushes: of the origin, or of a first holder in another region."""
        holding = self._table.catalog.artifacts.get(artifact)
        if holding and holding.seeder:
            holding.seeder.grant(link.peer, segments)
        elif holding and self._table.geography.is_across(link.peer):
            holding.forwarding.grant(link.peer, segments)

    def request(self, link: Link, frame: RequestSegments) -> None:
        """Queue what can be served; reject the rest."""
        holding = self._table.catalog.artifacts.get(frame.artifact)
        have = holding.fetch.have if holding else 0
        gone, busy = [], []
        waiting = {upload.index for upload in link.queue if upload.artifact == frame.artifact}
        for index in frame.segments:
            if not have >> index & 1:
                gone.append(index)
            elif index in waiting or (holding and self._is_on_its_way(link, holding, index)):
                continue
            elif len(link.queue) >= MAX_QUEUE:
                busy.append(index)
            else:
                link.queue.append(Upload(frame.artifact, index))
                waiting.add(index)
                self._claim(link, frame.artifact, index)
        if gone:
            self._table.send(link, Reject(frame.artifact, tuple(gone), "gone"))
        if busy:
            self._table.send(link, Reject(frame.artifact, tuple(busy), "busy"))
            self._table.emit(Refused(link.peer, Refusal.TOO_MANY_REQUESTS))

    def cancel(self, link: Link, frame: Cancel) -> None:
        unwanted = set(frame.segments)
        link.queue = deque(u for u in link.queue if u.artifact != frame.artifact or u.index not in unwanted)
        begun = [index for index in sorted(unwanted) if self._cancellable(link, frame.artifact, index)]
        self._withdraw(link, frame.artifact, begun)

    def forget(self, artifact: ArtifactId) -> None:
        """The artifact is dropped: send no more of it."""
        for link in self._table.links.values():
            link.queue = deque(u for u in link.queue if u.artifact != artifact)
            self._withdraw(link, artifact, [index for held, index in link.sending if held == artifact])

    def out(self, event: SegmentOut, now: float) -> int:
        """A segment has left. Returns what is thereby confirmed of an artifact of ours."""
        link = self._table.links.get(event.peer)
        holding = self._table.catalog.artifacts.get(event.artifact)
        sending = link.sending.pop((event.artifact, event.index), None) if link else None
        if link is None or holding is None or sending is None:
            return 0
        self._places.left(sending.length, now)
        link.outgoing.deliver(holding.manifest.header.segment_bytes, sending.since, now)
        holding.served[event.index] = holding.served.get(event.index, 0) + 1
        return holding.seeder.sent(link.peer, event.index, now) if holding.seeder else 0

    def failed(self, event: SendFailed) -> None:
        """Our own copy is damaged: it is not ours to serve any more, and a page that rode with it was not delivered."""
        link = self._table.links.get(event.peer)
        holding = self._table.catalog.artifacts.get(event.artifact)
        if holding:
            holding.fetch.have &= ~(1 << event.index)
            holding.complete = False
            holding.forwarding.lost(event.index)
            if holding.seeder:
                holding.seeder.produced &= ~(1 << event.index)
        sending = link.sending.pop((event.artifact, event.index), None) if link else None
        if link is None or sending is None:
            return
        if sending.carries_page is not None:
            link.pages.discard((event.artifact, sending.carries_page))
        if holding and holding.seeder:
            holding.seeder.unsent(link.peer, event.index)
            if sending.push:
                holding.seeder.grant(link.peer, 1)
        if holding and not sending.push:
            self._table.send(link, Reject(event.artifact, (event.index,), "gone"))

    def pump(self, now: float) -> None:
        """Hand over segments while there are free places."""
        links = self._table.links.values()
        busy = [link for link in links if link.sending]
        stuck = {link for link in busy if link.is_stuck(now)}
        under_way = [one for link in busy if link not in stuck for one in link.sending.values()]
        free = self._places.free(under_way, now)
        if free <= 0 or not self._has_work():
            return
        moving = [link for link in links if link not in stuck]
        if self._places.held_up(under_way, now):
            late = self._places.is_late
            moving = [link for link in moving if not any(late(one, now) for one in link.sending.values())]
        alone = len(links) == 1
        while free > 0:
            room = [link for link in moving if len(link.sending) < self._most(link, alone)]
            if not (self._push(room, now) or self._forward(room, now) or self._serve(room, now)):
                return
            free -= 1

    def _has_work(self) -> bool:
        known = self._table.catalog.artifacts.values()
        queued = any(link.queue for link in self._table.links.values())
        return queued or any(h.seeder is not None or not h.forwarding.is_idle for h in known)

    def _most(self, link: Link, alone: bool) -> int:
        """Segments that a link may have with the driver. alone: it is the only one."""
        long = alone or self._table.geography.is_across(link.peer)
        return PLACES_PER_LONG_LINK if long else PLACES_PER_LINK

    def expire(self, now: float) -> None:
        """First copies stuck behind a peer that takes nothing go to another one."""
        for link in self._table.links.values():
            if link.stuck_at() > now:
                continue
            for artifact, index in link.sending:
                holding = self._table.catalog.artifacts.get(artifact)
                if holding and holding.seeder:
                    holding.seeder.unsent(link.peer, index)
                elif holding:
                    holding.forwarding.withdraw(link.peer, self._table.geography.region_of(link.peer), index)

    def next_deadline(self, now: float) -> float:
        busy = [link for link in self._table.links.values() if link.sending]
        due = min((at for link in busy if (at := link.stuck_at()) > now), default=float("inf"))
        if self._catch_up_at > now and any(link.queue for link in self._table.links.values()):
            due = min(due, self._catch_up_at)
        return min(due, self._places.next_deadline((one for link in busy for one in link.sending.values()), now))

    def _push(self, room: list[Link], now: float) -> bool:
        on_probation = self._table.geography.on_probation
        trusted = [link for link in self._table.links.values() if not (link.is_host or on_probation(link.peer))]
        links = {link.peer: link for link in room if not trusted or not on_probation(link.peer)}
        for holding, seeder in self._table.seeding():
            choice = seeder.choose(links, now)
            if choice is not None:
                peer, index = choice
                seeder.sending(peer, index, now, pushed=True)
                self._hand_over(links[peer], holding, index, push="first", now=now)
                return True
        return False

    def _forward(self, room: list[Link], now: float) -> bool:
        """Push what the origin gave us to a gateway of another region."""
        links = {link.peer: link for link in room}
        for holding in self._table.forwarding():
            choice = holding.forwarding.choose(links, holding.artifact, self._table.geography)
            if choice is not None:
                peer, region, index = choice
                holding.forwarding.push(peer, region, index, asked=False)
                links[peer].pushed()
                self._hand_over(links[peer], holding, index, push="gateway", now=now)
                return True
        return False

    def _claim(self, link: Link, artifact: ArtifactId, index: int) -> None:
        """A member of another region asks for what we are about to push there: it shall be the gateway."""
        region, holding = self._table.geography.region_of(link.peer), self._table.catalog.artifacts[artifact]
        asked_for(self._table, link, holding, index)
        if region is not None and holding.forwarding.is_due(region, index):
            holding.forwarding.push(link.peer, region, index, asked=True)

    def _serve(self, room: list[Link], now: float) -> bool:
        waiting = [link for link in room if link.queue]
        if not waiting:
            return False
        mixed = any(self._table.geography.is_across(link.peer) for link in waiting)
        link = min(waiting, key=lambda link: self._rank(link, mixed))
        catch_up = self._is_catch_up(link.queue[0])
        if catch_up and self._live_in_flight() and now < self._catch_up_at:
            return False
        upload = link.queue.popleft()
        holding = self._table.catalog.artifacts[upload.artifact]
        if holding.fetch.have >> upload.index & 1 and not self._is_on_its_way(link, holding, upload.index):
            if holding.seeder and holding.seeder.is_unsent(upload.index):
                holding.seeder.sending(link.peer, upload.index, now, pushed=False)
            self._hand_over(link, holding, upload.index, push="", now=now)
            if catch_up:
                seconds = holding.length_of(upload.index) / (CATCH_UP_SHARE * self._places.best)
                self._catch_up_at = max(self._catch_up_at, now) + seconds
        return True

    def _is_catch_up(self, upload: Upload) -> bool:
        """Whether it belongs to what was out before the newest version."""
        holding = self._table.catalog.artifacts[upload.artifact]
        return holding.fetch.catch_up or (holding.complete and holding.seq < self._table.catalog.newest)

    def _live_in_flight(self) -> bool:
        """Whether a live artifact is on its way to us, or from us and not yet with others."""
        live = [h for h in self._table.catalog.artifacts.values() if not h.fetch.catch_up]
        return any(
            h.seeder.produced & ~h.seeder.confirmed if h.seeder else h.fetch.wanted and not h.complete for h in live
        )

    def _rank(self, link: Link, mixed: bool = False) -> tuple[bool, bool, bool, bool, int, int, float]:
        head = link.queue[0]
        holding = self._table.catalog.artifacts[head.artifact]
        first = holding.forwarding.is_first(link.peer, self._table.geography.region_of(link.peer), head.index)
        sole = bool(holding.peers.levels[0] >> head.index & 1) and not self._table.geography.is_across(link.peer)
        return (
            self._is_catch_up(head),
            not first,
            mixed and not sole,
            link.reach == 1,
            min(holding.served.get(head.index, 0), 1),
            len(link.sending),
            link.outgoing.last,
        )

    def _is_on_its_way(self, link: Link, holding: Holding, index: int) -> bool:
        pushed = holding.seeder is not None and holding.seeder.is_on_its_way(link.peer, index)
        return pushed or (holding.artifact, index) in link.sending

    def _hand_over(
        self, link: Link, holding: Holding, index: int, *, push: Literal["", "first", "gateway"], now: float
    ) -> None:
        first, page, expected = holding.page_of(index)
        carries = None if self._has_page(link, holding, first) else first
        if carries is not None:
            link.pages.add((holding.artifact, first))
        length = holding.length_of(index)
        link.sending[holding.artifact, index] = Sending(now, length, push != "", carries)
        frame = SegmentData(holding.artifact, index, push, b"" if carries is None else encode(page))
        self._table.emit(SendSegment(link.peer, frame, holding.artifact, index, expected, length))

    def _has_page(self, link: Link, holding: Holding, first: int) -> bool:
        """It travelled this link, or the peer announced a segment that the page covers."""
        if (holding.artifact, first) in link.pages:
            return True
        announced = holding.peers.held.get(link.peer, 0) >> first
        lowest = (announced & -announced).bit_length() - 1
        return announced != 0 and holding.manifest.page_key(first + lowest) == first

    def _cancellable(self, link: Link, artifact: ArtifactId, index: int) -> bool:
        sending = link.sending.get((artifact, index))
        return sending is not None and sending.carries_page is None and not sending.push

    def _withdraw(self, link: Link, artifact: ArtifactId, indices: list[int]) -> None:
        holding = self._table.catalog.artifacts.get(artifact)
        for index in indices:
            del link.sending[artifact, index]
            if holding and holding.seeder:
                holding.seeder.unsent(link.peer, index)
        if indices:
            self._table.emit(CancelSend(link.peer, artifact, tuple(indices)))
