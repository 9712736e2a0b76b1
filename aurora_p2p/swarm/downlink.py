"""Our downlink: what is asked of whom, what is believed of what arrives, what happens when nothing does.

A request is hedged (asked of one more peer) when its peer has been silent for `Link.silence`, and given up as a stall
after twice that; its late answer stays welcome. Everything that arrives is answered by one Keep or Discard: it is kept
only if its signed page verifies, its BLAKE3 is the one in the page, and it is still missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from aurora_p2p.artifact.manifest import ContradictionError
from aurora_p2p.errors import WireError
from aurora_p2p.swarm.catalog import Holding
from aurora_p2p.swarm.events import Discard, Keep, Refused, SegmentIn
from aurora_p2p.swarm.link import MIN_SILENCE, SILENCE_FACTOR, Link
from aurora_p2p.swarm.origin import MAX_CREDIT
from aurora_p2p.swarm.overseas import ask_abroad, delivers_again, look_around
from aurora_p2p.swarm.picker import MAX_COPIES
from aurora_p2p.swarm.refusals import Refusal
from aurora_p2p.swarm.table import Table
from aurora_p2p.types import ArtifactId, PeerId
from aurora_p2p.wire.exchange import Cancel, Credit, Reject, RequestSegments, SegmentData

MAX_OUTSTANDING = 64
"""Requests in flight over all peers."""
MAX_IN_FLIGHT = 4
"""Artifacts fetched at a time; further accepted ones wait their turn."""
GATEWAY_CREDIT = 8
"""Pushes of one artifact that each member across may have under way to us: one per connection of a long link, for a
connection that was idle takes several round trips for a segment."""
CREDIT_STEP = 8
"""Credit is renewed in steps, not for every push."""
REQUEST_BATCH = 64
"""Segments of one RequestSegments (wire.exchange)."""
BUSY_SECONDS = 0.1
USUAL_SECONDS = 0.1
"""How often what is usual is looked at anew: it moves slowly."""


class Downlink:
    def __init__(self, table: Table) -> None:
        self._table = table
        self.paused = False
        self._asking: dict[tuple[PeerId, ArtifactId], list[int]] = {}
        self._usually = {False: float("inf"), True: float("inf")}
        self._usual_until = float("-inf")

    def arrived(self, link: Link, holding: Holding, event: SegmentIn, now: float) -> str | None:
        """Judge a segment. Returns why its sender must be banned, or None.

        Raises ContradictionError when the page that came with it contradicts the publisher; the Discard is out by then.
        """
        index, fetch = event.frame.index, holding.fetch
        expected = self._settle(link, holding, event, now)
        try:  # whatever becomes of the segment: its page is not sent to us again
            page = holding.take_page(index, event.frame.page)
        except ContradictionError:
            self._table.emit(Discard(event.token))
            raise
        except WireError as error:
            self._table.emit(Discard(event.token))
            return f"a wrong page: {error}"
        if not expected or not fetch.wanted or not fetch.missing >> index & 1:
            if not expected:
                self._table.emit(Refused(link.peer, Refusal.UNASKED))
            elif fetch.have >> index & 1:
                fetch.duplicates += 1
            self._table.emit(Discard(event.token))
            return None
        if page is None or holding.manifest.expected(index) != event.digest:
            self._table.emit(Discard(event.token))
            if page is not None:
                return f"segment {index} fails its hash"
            self._table.emit(Refused(link.peer, Refusal.NO_PAGE))
            return None
        self._keep(link, holding, event, now)
        return None

    def lost(self, link: Link, holding: Holding, frame: SegmentData) -> str | None:
        """It arrived, but our disk could not take it. Returns and raises like `arrived`."""
        link.requests.pop((frame.artifact, frame.index), None)
        holding.fetch.settle(link.peer, frame.index)
        if frame.push:
            self._spend_credit(link, holding)
        try:
            holding.take_page(frame.index, frame.page)
        except ContradictionError:
            raise
        except WireError as error:
            return f"a wrong page: {error}"
        return None

    def rejected(self, link: Link, frame: Reject, now: float) -> None:
        holding = self._table.catalog.artifacts.get(frame.artifact)
        if holding is None:
            return
        for index in frame.segments:
            if link.requests.pop((frame.artifact, index), None) is not None:
                holding.fetch.settle(link.peer, index)
            if frame.reason == "gone":
                holding.peers.take(link.peer, 1 << index)
                holding.fetch.host_lacks(link.peer, 1 << index)
                look_around(self._table, holding, now)
        if frame.reason != "gone":
            link.resume_at = now + max(BUSY_SECONDS, link.latency)

    def grant(self, link: Link, holding: Holding) -> None:
        """Let a peer push to us: as much as is useful, and no more than it may have outstanding."""
        fetch = holding.fetch
        if not fetch.wanted or fetch.probing or holding.complete or self.paused or holding.artifact not in link.offers:
            return
        most, step = (MAX_CREDIT, CREDIT_STEP) if link.is_host else (self._gateway_credit(link, holding), 1)
        room = most - fetch.credit.get(link.peer, 0)
        if room >= step:
            fetch.credit[link.peer] = most
            self._table.send(link, Credit(holding.artifact, room))

    def _gateway_credit(self, link: Link, holding: Holding) -> int:
        """Pushes of a first holder across that are welcome: none where we ask for ourselves."""
        geography = self._table.geography
        if holding.fetch.catch_up or geography.alone or not geography.is_across(link.peer):
            return 0
        return GATEWAY_CREDIT

    def probe(self, link: Link, holding: Holding, now: float) -> None:
        """Let a host be asked for probes at once: an origin announces nothing of what nobody has fetched."""
        if link.is_host and holding.fetch.probing and holding.manifest.final is not None:
            holding.fetch.host_has(link.peer, holding.fetch.only, due=now)

    def forget(self, artifact: ArtifactId) -> None:
        """The artifact is dropped: wait for none of it."""
        for link in self._table.links.values():
            for key in [key for key in link.requests if key[0] == artifact]:
                link.give_up(key)

    def schedule(self, now: float) -> None:
        """Ask for as much as the limits allow."""
        if not self.paused:
            for holding in self._in_flight():
                self._schedule_one(holding, now)
        for (peer, artifact), indices in self._asking.items():
            for start in range(0, len(indices), REQUEST_BATCH):
                frame = RequestSegments(artifact, 0, tuple(indices[start : start + REQUEST_BATCH]))
                self._table.send(self._table.links[peer], frame)
        self._asking.clear()

    def expire(self, now: float) -> None:
        for holding in self._in_flight():
            holding.fetch.expire(now)
        due = [link for link in self._table.links.values() if link.requests and self._due(link, now) <= now]
        for link in due:  # first, so that nothing asked now is cancelled now
            if link.hedged_at is not None:
                self._stall(link, now)
        for link in due:
            if link.requests and link.hedged_at is None:
                link.hedged_at = now
                self._hedge(link, now)
        for holding in self._in_flight():
            ask_abroad(self._table, holding, now)

    def next_deadline(self, now: float) -> float:
        due = float("inf")
        for holding in self._in_flight():
            due = min(due, holding.fetch.next_deadline(), holding.crossing.next_deadline())
        for link in self._table.links.values():
            if link.requests:
                due = min(due, self._due(link, now))
            if link.resume_at > now:
                due = min(due, link.resume_at)
        return due

    def _settle(self, link: Link, holding: Holding, event: SegmentIn, now: float) -> bool:
        """Close the books on one arrival. Whether we had asked for it, or granted credit for it."""
        key, was_silent = (event.frame.artifact, event.frame.index), link.silent
        expected = link.delivered(key, holding.manifest.header.segment_bytes, now)
        if was_silent and not link.silent:
            delivers_again(self._table, link, now)
        holding.fetch.settle(link.peer, event.frame.index)
        if event.frame.push:
            expected = self._spend_credit(link, holding) or expected
        return expected

    def _spend_credit(self, link: Link, holding: Holding) -> bool:
        """Whether there was any for a push."""
        credit = holding.fetch.credit.get(link.peer, 0)
        holding.fetch.credit[link.peer] = max(credit - 1, 0)
        return credit > 0

    def _keep(self, link: Link, holding: Holding, event: SegmentIn, now: float) -> None:
        index, fetch = event.frame.index, holding.fetch
        page_first, page, _ = holding.page_of(index)
        fetch.verifying |= 1 << index
        if event.length != holding.manifest.header.segment_bytes:
            holding.short[index] = event.length
        holding.firsts |= link.is_host << index
        link.pages.add((holding.artifact, page_first))
        for peer in list(fetch.copies.get(index, ())):
            other = self._table.links[peer]
            other.give_up((holding.artifact, index))
            fetch.settle(peer, index)
            self._table.send(other, Cancel(holding.artifact, (index,)))
            if other.hedged_at is not None and not other.requests:  # others were faster with all that it was asked for
                self._stalled(other, [holding], now)
        self._table.emit(Keep(holding.artifact, index, event.token, page))

    def _in_flight(self) -> list[Holding]:
        known = self._table.catalog.artifacts.values()
        wanted = (h for h in known if h.fetch.wanted and not h.complete and not h.fetch.resting)
        return sorted(wanted, key=lambda h: (h.fetch.catch_up, h.seq))[:MAX_IN_FLIGHT]

    def _schedule_one(self, holding: Holding, now: float) -> None:
        fetch, size = holding.fetch, holding.manifest.header.segment_bytes
        links = self._table.links
        room = MAX_OUTSTANDING - sum(len(link.requests) for link in links.values())
        if room <= 0 or not fetch.idle:
            return
        free = [link for link in links.values() if link.slots(size, now) > 0]
        while room > 0 and fetch.idle:
            behaving = [link for link in free if not (link.is_host or link.silent)]
            asked = self._ask_near(behaving, holding, now) or self._ask_across(behaving, holding, now)
            asked = asked or self._ask_host(free, holding, now)
            asked = asked or self._ask_silent([link for link in free if link.silent], holding, now)
            if asked is None:
                return
            if asked.slots(size, now) <= 0:
                free.remove(asked)
            room -= 1

    def _ask_near(self, free: list[Link], holding: Holding, now: float) -> Link | None:
        """Ask for the rarest segment, whoever of these will answer soonest."""
        index = holding.fetch.pick((link.peer for link in free), self._table.rng)
        if index is None:
            return None
        able = [link for link in free if holding.peers.counted(link.peer) >> index & 1]
        asked = self._cheapest(able, holding.manifest.header.segment_bytes)
        self._ask(asked, holding, index, now)
        return asked

    def _ask_across(self, free: list[Link], holding: Holding, now: float) -> Link | None:
        """Ask a peer of another region, rather the one who told us first: it may be pushing the segment already."""
        crossing, size = holding.crossing, holding.manifest.header.segment_bytes
        freely, sparse = holding.fetch.catch_up or self._table.geography.alone, self._table.sparse
        allowed = crossing.open | (crossing.inside if sparse else 0) if not freely else holding.peers.full
        index = holding.fetch.pick_across((link.peer for link in free), allowed, self._table.rng) if allowed else None
        if index is None:  # few can be served by whoever is behind a NAT: an uplink to spare
            free = [link for link in free if link.reach < 1]
            index = holding.fetch.pick_across((link.peer for link in free), crossing.inside, self._table.rng)
        if index is None:
            return None
        able = [link for link in free if holding.peers.across(link.peer) >> index & 1]
        heard = crossing.heard.get(index)
        told = [link for link in able if heard is not None and link.peer == heard.source and not freely]
        asked = self._cheapest(told or able, size)
        self._ask(asked, holding, index, now)
        return asked

    def _ask_silent(self, free: list[Link], holding: Holding, now: float) -> Link | None:
        """Who stalled is asked what nobody else can be asked for now: it may have come to its senses."""
        return self._ask_near(free, holding, now) or self._ask_across(free, holding, now)

    def _ask_host(self, free: Iterable[Link], holding: Holding, now: float) -> Link | None:
        snubbed = {link.peer for link in self._table.links.values() if link.snubbed}
        for link in free:
            index = holding.fetch.pick_from_host(link.peer, self._table.rng, snubbed) if link.is_host else None
            if index is not None:
                self._ask(link, holding, index, now)
                return link
        return None

    def _cheapest(self, able: list[Link], segment_bytes: int) -> Link:
        return min(able, key=lambda link: link.cost(segment_bytes) * (1 + 0.05 * self._table.rng.random()))

    def _ask(self, link: Link, holding: Holding, index: int, now: float) -> None:
        link.requests[holding.artifact, index] = now
        link.late.pop((holding.artifact, index), None)
        holding.fetch.request(link.peer, index)
        self._asking.setdefault((link.peer, holding.artifact), []).append(index)

    def _usual(self, link: Link, segment_bytes: int, now: float) -> float:
        """Seconds in which most of those who deliver answer a request, on the same side of the ocean as the link."""
        if now >= self._usual_until:
            self._usual_until = now + USUAL_SECONDS
            for far in (False, True):
                proven = [other for other in self._table.links.values() if other.incoming.measured]
                proven = [other for other in proven if self._table.geography.is_across(other.peer) is far]
                answers = sorted(other.answer_seconds(segment_bytes) for other in proven)
                self._usually[far] = answers[len(answers) // 2] if answers else float("inf")
        return self._usually[self._table.geography.is_across(link.peer)]

    def _due(self, link: Link, now: float) -> float:
        """When the silence of a link will be hedged, or, hedged already, count as a stall."""
        artifact, _ = next(iter(link.requests))
        holding = self._table.catalog.artifacts[artifact]
        size = holding.manifest.header.segment_bytes
        silence = link.silence(size, self._usual(link, size, now))
        if link.hedged_at is not None:
            return max(link.quiet_since() + 2 * silence, link.hedged_at + silence)
        if holding.fetch.endgame:
            others = [other for other in self._table.links.values() if other is not link and not other.is_host]
            better = min((SILENCE_FACTOR * other.cost(size) for other in others), default=silence)
            silence = min(silence, max(better, MIN_SILENCE))
        return link.quiet_since() + silence

    def _hedge(self, link: Link, now: float) -> None:
        for artifact, index in list(link.requests):
            holding = self._table.catalog.artifacts[artifact]
            fetch, size = holding.fetch, holding.manifest.header.segment_bytes
            if len(fetch.copies.get(index, ())) >= MAX_COPIES or not fetch.may_hedge:
                continue
            free = [other for other in self._table.links.values() if other is not link and other.slots(size, now) > 0]
            able = [other for other in free if fetch.peers.counted(other.peer) >> index & 1]
            able = able or [other for other in free if fetch.peers.across(other.peer) >> index & 1]
            able = able or [other for other in free if fetch.host_offers(other.peer, index)]
            if able:
                self._ask(self._cheapest(able, size), holding, index, now)
        for holding in self._in_flight():
            look_around(self._table, holding, now)

    def _stall(self, link: Link, now: float) -> None:
        by_artifact: dict[ArtifactId, list[int]] = {}
        for artifact, index in list(link.requests):
            link.give_up((artifact, index))
            self._table.catalog.artifacts[artifact].fetch.settle(link.peer, index)
            by_artifact.setdefault(artifact, []).append(index)
        for artifact, indices in by_artifact.items():
            self._table.send(link, Cancel(artifact, tuple(indices[:REQUEST_BATCH])))
        self._stalled(link, [self._table.catalog.artifacts[artifact] for artifact in by_artifact], now)

    def _stalled(self, link: Link, holdings: list[Holding], now: float) -> None:
        """It delivered nothing of these: rather somebody else, until it does."""
        link.stalls, link.hedged_at = link.stalls + 1, None
        for holding in holdings:
            holding.fetch.stall(link.peer, now, streak=link.stalls)
            look_around(self._table, holding, now)
        self._table.emit(Refused(link.peer, Refusal.SILENT))
