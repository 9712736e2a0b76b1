"""What peers say and send, one frame at a time. Nothing in here raises because of it.

A fault of a peer is Refused; Banned where bytes failed a hash or a page its signature.
"""

from __future__ import annotations

from aurora_p2p.artifact.manifest import ContradictionError, artifact_id_of
from aurora_p2p.crypto.sign import WIRE_MIN, WIRE_VERSION
from aurora_p2p.errors import WireError
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.announcing import Announcer
from aurora_p2p.swarm.bitset import mask_of
from aurora_p2p.swarm.catalog import Holding
from aurora_p2p.swarm.downlink import Downlink
from aurora_p2p.swarm.lifecycle import Lifecycle
from aurora_p2p.swarm.link import Link
from aurora_p2p.swarm.members import Members
from aurora_p2p.swarm.origin import watch_seconds
from aurora_p2p.swarm.overseas import heard
from aurora_p2p.swarm.refusals import Refusal
from aurora_p2p.swarm.table import Table
from aurora_p2p.swarm.uplink import Uplink
from aurora_p2p.types import ArtifactId
from aurora_p2p.wire import exchange as frames
from aurora_p2p.wire.signed import Signed
from aurora_p2p.wire.trust import Equivocation

PEERS_FIRST_SECONDS = 5.0
"""From its first link on a newcomer asks no host for what is not live: its links to other members take two seconds."""


class Inbound:
    def __init__(
        self,
        table: Table,
        announcer: Announcer,
        uplink: Uplink,
        downlink: Downlink,
        lifecycle: Lifecycle,
        members: Members,
    ) -> None:
        self._table, self._catalog, self._links = table, table.catalog, table.links
        self._announcer, self._uplink, self._downlink = announcer, uplink, downlink
        self._lifecycle, self._members = lifecycle, members

    def take(self, event: ev.FrameIn | ev.SegmentIn | ev.SegmentLost, now: float) -> None:
        """A frame or a segment of a peer; one whose link we have forgotten already is dropped."""
        link = self._links.get(event.peer)
        if link is None:
            if isinstance(event, ev.SegmentIn):
                self._table.emit(ev.Discard(event.token))
            return
        match event:
            case ev.FrameIn(_, frame):
                self._frame(link, frame, now)
            case ev.SegmentIn() | ev.SegmentLost():
                self._segment(link, event, now)

    def _frame(self, link: Link, frame: frames.ExchangeFrame, now: float) -> None:
        match frame:
            case frames.Hello():
                self._hello(link, frame, now)
            case frames.Offer():
                self._offered(link, frame, now)
            case frames.Bitfield(artifact, bitmap):
                self._announced(link, artifact, int.from_bytes(bitmap, "little"), now)
            case frames.Have(artifact, segments, queue):
                link.peer_queue = queue
                self._announced(link, artifact, mask_of(segments), now)
            case frames.RequestSegments():
                self._uplink.request(link, frame)
            case frames.Cancel():
                self._uplink.cancel(link, frame)
            case frames.Reject():
                self._downlink.rejected(link, frame, now)
            case frames.Credit(artifact, segments):
                self._uplink.granted(link, artifact, segments)
            case frames.Drop(abort):
                self._lifecycle.abort(abort)
            case frames.Evidence(first, second):
                self._lifecycle.equivocated(Equivocation(first, second))
            case frames.SegmentData():
                self._table.emit(ev.Refused(link.peer, Refusal.NO_PAYLOAD))

    def _hello(self, link: Link, frame: frames.Hello, now: float) -> None:
        if frame.wire_max < WIRE_MIN or frame.wire_min > WIRE_VERSION:
            spoken = f"it speaks wire versions {frame.wire_min} to {frame.wire_max}, we {WIRE_MIN} to {WIRE_VERSION}"
            self._table.emit(ev.Refused(link.peer, Refusal.OTHER_WIRE, spoken))
            self._members.close(link.peer, spoken, now)
            return
        link.claim(frame.up_kbps)

    def _offered(self, link: Link, frame: frames.Offer, now: float) -> None:
        artifact = artifact_id_of(frame.header)
        holding = self._catalog.artifacts.get(artifact) or self._open(link, frame)
        if holding is None:
            return
        link.offers[artifact] = link.offers.get(artifact, False) or frame.final is not None
        self._take_final(link, holding, frame.final)
        self._downlink.grant(link, holding)
        self._downlink.probe(link, holding, now)
        self._announcer.offer_to_all(holding)

    def _open(self, link: Link, frame: frames.Offer) -> Holding | None:
        """A header not known so far."""
        abort = self._catalog.abort_of(artifact_id_of(frame.header))
        if abort is not None:  # it was away when this was passed on
            self._table.send(link, frames.Drop(abort))
            return None
        opened = self._catalog.open(frame.header)
        if isinstance(opened, Equivocation):
            self._lifecycle.equivocated(opened)
            return None
        if isinstance(opened, tuple):
            self._table.emit(ev.Refused(link.peer, *opened))
            return None
        if self._catalog.full:
            victim = self._catalog.least(opened.header.seq)
            if victim is None:
                self._table.emit(ev.Refused(link.peer, Refusal.TOO_MANY_ARTIFACTS))
                return None
            self._lifecycle.drop(victim)
        self._table.emit(ev.Announced(opened))
        return self._catalog.add(opened, catch_up=frame.final is not None)

    def _take_final(self, link: Link, holding: Holding, final: Signed | None) -> None:
        try:
            first = self._catalog.take_final(holding, final)
        except ContradictionError as error:
            self._lifecycle.contradicted(holding.artifact, str(error))
        except WireError as error:
            link.offers[holding.artifact] = False
            self._table.emit(ev.Refused(link.peer, Refusal.BAD_FINAL, str(error)))
        else:
            if first:
                self._lifecycle.final_known(holding)

    def _announced(self, link: Link, artifact: ArtifactId, mask: int, now: float) -> None:
        holding = self._catalog.artifacts.get(artifact)
        if holding is None:
            return
        if mask & ~holding.peers.full:
            self._table.emit(ev.Refused(link.peer, Refusal.PAST_THE_BOUND))
            mask &= holding.peers.full
        if link.is_host:
            due = now + watch_seconds(link, holding.manifest.header.segment_bytes)
            if not self._catalog.is_live(holding):
                due = max(due, self._members.linked_since + PEERS_FIRST_SECONDS)
            holding.fetch.host_has(link.peer, mask, due=due)
            self._table.askable = True
            return
        if holding.seeder:  # what is not live can be made of what a node stores
            mask &= holding.seeder.produced if holding.fetch.catch_up else holding.seeder.released
        new = holding.peers.add(link.peer, mask)
        if new & holding.fetch.idle:
            self._table.askable = True
        if not holding.seeder:
            heard(self._table, link, holding, new, now)
        elif new:
            self._announcer.note(holding, holding.seeder.announced(self._links, link.peer, new, now), now)

    def _segment(self, link: Link, event: ev.SegmentIn | ev.SegmentLost, now: float) -> None:
        holding = self._catalog.artifacts.get(event.frame.artifact)
        if holding is None or holding.seeder:
            if isinstance(event, ev.SegmentIn):
                link.delivered((event.frame.artifact, event.frame.index), event.length, now)
                self._table.emit(ev.Discard(event.token))
            return
        try:
            if isinstance(event, ev.SegmentIn):
                fault = self._downlink.arrived(link, holding, event, now)
            else:
                fault = self._downlink.lost(link, holding, event.frame)
        except ContradictionError as error:
            self._lifecycle.contradicted(holding.artifact, str(error))
            return
        if fault is not None:
            self._members.ban(link.peer, fault, now)
