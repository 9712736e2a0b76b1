"""Our uplink: what is sent next, to whom.

A segment waits here, where it can still be cancelled and overtaken, and is handed to the driver only when one of few
places is free:   QUEUED (a peer's request) -> SENDING -> out | failed | cancelled.
The origin's pushes are made on demand and never queue.
Order: first copies (pushes), then live artifacts, then catch-up; within those what was served least often, and peers in
turn. A peer that takes nothing for a while keeps its places without counting against the others.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from aurora_p2p.swarm.catalog import Holding
from aurora_p2p.swarm.events import CancelSend, Refused, SegmentOut, SendFailed, SendSegment
from aurora_p2p.swarm.link import MAX_QUEUE, Link, Sending, Upload
from aurora_p2p.swarm.table import Table
from aurora_p2p.types import ArtifactId
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.exchange import Cancel, Reject, RequestSegments, SegmentData

UPLOADS = 4
"""Segments with the driver at a time: enough to keep a socket busy over the pipe to the bulk child, few enough that a
segment is complete, and can be passed on, soon after it was begun."""
UPLOADS_PER_LINK = 2


class Uplink:
    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def queued(self) -> int:
        """Segments that wait or are on their way, over all links: the load that a Have tells."""
        return sum(len(link.queue) + len(link.sending) for link in self._table.links.values())

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
        if gone:
            self._table.send(link, Reject(frame.artifact, tuple(gone), "gone"))
        if busy:
            self._table.send(link, Reject(frame.artifact, tuple(busy), "busy"))
            self._table.emit(Refused(link.peer, f"it asked for more than {MAX_QUEUE} segments at a time"))

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
        moving = [link for link in self._table.links.values() if link.stuck_at() > now]
        limit = UPLOADS_PER_LINK if len(moving) > 1 else UPLOADS
        free = UPLOADS - sum(len(link.sending) for link in moving)
        while free > 0:
            room = [link for link in moving if len(link.sending) < limit]
            if not (self._push(room, now) or self._serve(room, now)):
                return
            free -= 1

    def expire(self, now: float) -> None:
        """First copies stuck behind a peer that takes nothing go to another one."""
        for link in self._table.links.values():
            if link.stuck_at() > now:
                continue
            for artifact, index in link.sending:
                holding = self._table.catalog.artifacts.get(artifact)
                if holding and holding.seeder:
                    holding.seeder.unsent(link.peer, index)

    def next_deadline(self, now: float) -> float:
        return min((at for link in self._table.links.values() if (at := link.stuck_at()) > now), default=float("inf"))

    def _push(self, room: list[Link], now: float) -> bool:
        links = {link.peer: link for link in room}
        for holding, seeder in self._table.seeding():
            choice = seeder.choose(links)
            if choice is not None:
                peer, index = choice
                seeder.sending(peer, index, pushed=True)
                self._hand_over(links[peer], holding, index, push="first", now=now)
                return True
        return False

    def _serve(self, room: list[Link], now: float) -> bool:
        waiting = [link for link in room if link.queue]
        if not waiting:
            return False
        link = min(waiting, key=self._rank)
        upload = link.queue.popleft()
        holding = self._table.catalog.artifacts[upload.artifact]
        if holding.fetch.have >> upload.index & 1 and not self._is_on_its_way(link, holding, upload.index):
            if holding.seeder and holding.seeder.is_unsent(upload.index):
                holding.seeder.sending(link.peer, upload.index, pushed=False)
            self._hand_over(link, holding, upload.index, push="", now=now)
        return True

    def _rank(self, link: Link) -> tuple[bool, int, int, float]:
        head = link.queue[0]
        holding = self._table.catalog.artifacts[head.artifact]
        catch_up = holding.fetch.catch_up or (holding.complete and holding.seq < self._table.catalog.newest)
        return catch_up, holding.served.get(head.index, 0), len(link.sending), link.outgoing.last

    def _is_on_its_way(self, link: Link, holding: Holding, index: int) -> bool:
        pushed = holding.seeder is not None and holding.seeder.is_on_its_way(link.peer, index)
        return pushed or (holding.artifact, index) in link.sending

    def _hand_over(self, link: Link, holding: Holding, index: int, *, push: Literal["", "first"], now: float) -> None:
        first, page, expected = holding.page_of(index)
        carries = None if self._has_page(link, holding, first) else first
        if carries is not None:
            link.pages.add((holding.artifact, first))
        length = holding.length_of(index)
        link.sending[holding.artifact, index] = Sending(now, length, push == "first", carries)
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
