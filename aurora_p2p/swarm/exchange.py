"""Segment exchange: one machine, the same in a host (where it is the origin) and in a node.

    handle(event, now) -> effects     expire(now) -> effects     next_deadline() -> seconds, CLOCK_BOOTTIME

    link       UP -> (Hello, Offer + Bitfield of all we can serve) -> exchanging -> DOWN | BANNED
    artifact   ANNOUNCED (header verified) -> accepted: FETCHING -> COMPLETE -> seeding -> retired | aborted
    origin     Publish -> Produced* -> Finished, seeding from the first Produced on (origin.py)

Invariants
- Only a segment that verified and was Stored is announced or served, always with its signed page available to the peer.
- At most two copies of a segment are asked for at a time; every SegmentIn is answered by one Keep or Discard.
- No frame of a peer raises: its fault is Refused, and Banned where bytes failed a hash or a page its signature.
- Everything a peer can make us remember is bounded: known artifacts (catalog.py), its queue and late answers (link.py).

It never sees segment bytes, opens no file and no socket, and applies nothing: that begins after Completed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aurora_p2p.artifact.manifest import ContradictionError, Manifest, artifact_id_of
from aurora_p2p.crypto.sign import WIRE_MIN, WIRE_VERSION
from aurora_p2p.errors import WireError
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.catalog import Catalog, Holding
from aurora_p2p.swarm.downlink import Downlink
from aurora_p2p.swarm.link import Link
from aurora_p2p.swarm.origin import watch_seconds
from aurora_p2p.swarm.picker import bits, mask_of
from aurora_p2p.swarm.roster import RosterView
from aurora_p2p.swarm.standing import Standing, standing_of
from aurora_p2p.swarm.strikes import Strikes
from aurora_p2p.swarm.table import Table
from aurora_p2p.swarm.uplink import Uplink
from aurora_p2p.types import ArtifactId, Epoch, PeerId, SwarmId
from aurora_p2p.wire import exchange as frames
from aurora_p2p.wire.signed import Signed
from aurora_p2p.wire.trust import Equivocation

if TYPE_CHECKING:
    from random import Random

BATCH_SECONDS = 0.01
"""Newly servable segments are announced together."""
ORIGIN_BATCH_SECONDS = 0.5
"""An origin announces itself as the last resort only: by then most peers hold the segment and need not be told."""
HAVE_BATCH = 4096
"""Segments of one Have (wire.exchange)."""


@dataclass(frozen=True, slots=True)
class ExchangeConfig:
    """swarm: whose headers are admitted. up_kbps: upload that we offer, kbit/s; 0 does not say."""

    swarm: SwarmId
    up_kbps: int = 0


class Exchange:
    def __init__(self, config: ExchangeConfig, me: PeerId, rng: Random) -> None:
        self._config, self._me = config, me
        self._catalog = Catalog(config.swarm)
        self._table = Table(self._catalog, rng)
        self._links = self._table.links
        self._uplink, self._downlink = Uplink(self._table), Downlink(self._table)
        self._strikes = Strikes()
        self._roster: RosterView | None = None
        self._news: dict[ArtifactId, int] = {}
        """Servable segments not announced yet."""
        self._flush_at = float("inf")
        self._now = float("-inf")
        """The time of the last event."""

    # -- the machine

    def handle(self, event: ev.Event, *, now: float) -> list[ev.Effect]:
        """One event in, effects out, to be carried out in order."""
        match event:
            case ev.LinkUp(peer):
                self._link_up(peer, now)
            case ev.LinkDown(peer):
                self._forget(peer, now)
            case ev.FrameIn() | ev.SegmentIn() | ev.SegmentLost():
                self._from_peer(event, now)
            case ev.SegmentOut():
                self._note(event.artifact, self._uplink.out(event, now), now)
            case ev.SendFailed():
                self._uplink.failed(event)
            case ev.TrustChanged():
                self._trust(event)
            case ev.RosterChanged(roster):
                self._roster = roster
                for peer in [peer for peer in self._links if not self._is_member(peer)]:
                    self._close(peer, "it is not in the roster", now)
            case ev.PauseFetch(paused):
                self._pause(paused)
            case ev.Aborted(abort):
                self._abort(abort)
            case _:
                self._from_store(event, now)
        return self._settle(now)

    def expire(self, *, now: float) -> list[ev.Effect]:
        """What follows from time alone. Call it when next_deadline has passed, and after a suspend."""
        self._downlink.expire(now)
        self._uplink.expire(now)
        for holding, seeder in self._table.seeding():
            self._note(holding.artifact, seeder.expire(self._links, now), now)
        if self._flush_at <= now:
            self._flush()
        return self._settle(now)

    def next_deadline(self) -> float:
        """When expire() has something to do; infinite when only an event can bring it."""
        now = self._now
        due = min(self._flush_at, self._downlink.next_deadline(now), self._uplink.next_deadline(now))
        return min([due, *(seeder.next_deadline(self._links) for _, seeder in self._table.seeding())])

    def have(self, artifact: ArtifactId) -> int:
        """The segments held of an artifact, as a bit set (0 when it is not known): for the status display."""
        holding = self._catalog.artifacts.get(artifact)
        return holding.fetch.have if holding else 0

    def holders(self, artifact: ArtifactId) -> dict[PeerId, int]:
        """How many of an artifact's segments each linked peer announced: for the status display."""
        holding = self._catalog.artifacts.get(artifact)
        return {peer: mask.bit_count() for peer, mask in holding.peers.held.items()} if holding else {}

    def reach_of(self, artifact: ArtifactId) -> tuple[int, int]:
        """(the segments held, as a bit set; how many there are as far as anybody told us): for the status display."""
        holding = self._catalog.artifacts.get(artifact)
        if holding is None:
            return 0, 0
        final, have = holding.manifest.final, holding.fetch.have
        told = max((mask.bit_length() for mask in holding.peers.held.values()), default=0)
        return have, final.segments if final else max(have.bit_length(), told)

    def standings(self) -> dict[PeerId, Standing]:
        """How each linked peer stands with us: for the status display."""
        holdings = self._catalog.artifacts.values()
        return {peer: standing_of(link, holdings, self._strikes.count(peer)) for peer, link in self._links.items()}

    # -- our own process

    def _from_store(self, event: ev.Event, now: float) -> None:
        match event:
            case ev.Publish(manifest):
                holding = self._known(manifest, origin=True)
                self._offer_to_all(holding)
            case ev.Restored(manifest, indices, origin):
                self._restore(manifest, mask_of(indices), origin)
            case ev.Accept(artifact) | ev.Decline(artifact):
                self._answer(artifact, accepted=isinstance(event, ev.Accept))
            case ev.Produced() | ev.Finished() | ev.Stored() | ev.StoreFailed():
                holding_or_none = self._catalog.artifacts.get(event.artifact)
                if holding_or_none is not None:
                    self._progress(holding_or_none, event, now)
            case ev.Retire(artifact):
                self._drop(artifact)

    def _progress(
        self, holding: Holding, event: ev.Produced | ev.Finished | ev.Stored | ev.StoreFailed, now: float
    ) -> None:
        match event:
            case ev.Produced(_, indices, last_bytes):
                new = mask_of(indices)
                holding.fetch.have |= new
                if last_bytes is not None:
                    holding.short[new.bit_length() - 1] = last_bytes
                if holding.seeder:
                    self._note(holding.artifact, holding.seeder.produce(new), now)
            case ev.Finished():
                self._final_known(holding)
            case ev.Stored(_, index):
                holding.fetch.verifying &= ~(1 << index)
                holding.fetch.have |= 1 << index
                self._note(holding.artifact, 1 << index, now)
                self._complete(holding)
                for link in self._links.values():
                    self._downlink.grant(link, holding)
            case ev.StoreFailed(_, index):
                holding.fetch.verifying &= ~(1 << index)

    def _restore(self, manifest: Manifest, have: int, origin: bool) -> None:
        holding = self._known(manifest, origin=origin)
        holding.fetch.have = have
        holding.fetch.wanted = not origin
        if holding.seeder:
            holding.seeder.produced = holding.seeder.released = have
        if manifest.final is None:
            self._offer_to_all(holding)
        else:
            self._final_known(holding)

    def _answer(self, artifact: ArtifactId, *, accepted: bool) -> None:
        holding = self._catalog.artifacts.get(artifact)
        if holding is None or holding.seeder:
            return
        holding.fetch.wanted = accepted
        if accepted:
            self._complete(holding)
            for link in self._links.values():
                self._downlink.grant(link, holding)

    def _pause(self, paused: bool) -> None:
        self._downlink.paused = paused
        if not paused:
            for holding in self._catalog.artifacts.values():
                for link in self._links.values():
                    self._downlink.grant(link, holding)

    def _trust(self, event: ev.TrustChanged) -> None:
        self._catalog.trust(event)
        for link in self._links.values():
            link.is_host = link.peer in event.hosts

    # -- links

    def _is_member(self, peer: PeerId) -> bool:
        return self._roster is None or peer in self._roster or peer in self._catalog.hosts

    def _link_up(self, peer: PeerId, now: float) -> None:
        if peer in self._links:
            self._forget(peer, now)
        if self._strikes.is_banned(peer, now) or not self._is_member(peer):
            self._table.emit(ev.CloseLink(peer, "it is banned or not in the roster"))
            return
        link = self._links[peer] = Link(peer, peer in self._catalog.hosts)
        epoch = self._roster.epoch if self._roster else Epoch(0)
        self._table.send(link, frames.Hello(WIRE_MIN, WIRE_VERSION, epoch, self._config.up_kbps))
        for holding in sorted(self._catalog.artifacts.values(), key=lambda h: -h.seq):
            self._offer(link, holding)
            servable = holding.servable & ~self._news.get(holding.artifact, 0)
            if servable:
                bitmap = servable.to_bytes(-(-servable.bit_length() // 8), "little")
                self._table.send(link, frames.Bitfield(holding.artifact, bitmap))

    def _forget(self, peer: PeerId, now: float) -> None:
        """The link is gone, with what was asked of it and promised to it."""
        if self._links.pop(peer, None) is None:
            return
        for holding in self._catalog.artifacts.values():
            holding.fetch.forget(peer)
            if holding.seeder:
                self._note(holding.artifact, holding.seeder.forget(peer), now)

    def _close(self, peer: PeerId, reason: str, now: float) -> None:
        self._forget(peer, now)
        self._table.emit(ev.CloseLink(peer, reason))

    def _ban(self, peer: PeerId, reason: str, now: float) -> None:
        self._table.emit(ev.Banned(peer, self._strikes.ban(peer, now), reason))
        self._close(peer, reason, now)

    # -- frames

    def _from_peer(self, event: ev.FrameIn | ev.SegmentIn | ev.SegmentLost, now: float) -> None:
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
                self._offered(link, frame)
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
                holding = self._catalog.artifacts.get(artifact)
                if holding and holding.seeder:
                    holding.seeder.grant(link.peer, segments)
            case frames.Drop(abort):
                self._abort(abort)
            case frames.Evidence(first, second):
                self._equivocated(Equivocation(first, second))
            case frames.SegmentData():
                self._table.emit(ev.Refused(link.peer, "a segment without payload"))

    def _hello(self, link: Link, frame: frames.Hello, now: float) -> None:
        if frame.wire_max < WIRE_MIN or frame.wire_min > WIRE_VERSION:
            spoken = f"it speaks wire versions {frame.wire_min} to {frame.wire_max}, we {WIRE_MIN} to {WIRE_VERSION}"
            self._table.emit(ev.Refused(link.peer, spoken))
            self._close(link.peer, spoken, now)
            return
        link.claim(frame.up_kbps)

    def _offered(self, link: Link, frame: frames.Offer) -> None:
        artifact = artifact_id_of(frame.header)
        holding = self._catalog.artifacts.get(artifact) or self._open(link, frame)
        if holding is None:
            return
        link.offers[artifact] = link.offers.get(artifact, False) or frame.final is not None
        self._take_final(link, holding, frame.final)
        self._downlink.grant(link, holding)
        self._offer_to_all(holding)

    def _open(self, link: Link, frame: frames.Offer) -> Holding | None:
        """A header not known so far."""
        abort = self._catalog.abort_of(artifact_id_of(frame.header))
        if abort is not None:  # it was away when this was passed on
            self._table.send(link, frames.Drop(abort))
            return None
        opened = self._catalog.open(frame.header)
        if isinstance(opened, Equivocation):
            self._equivocated(opened)
            return None
        if isinstance(opened, str):
            self._table.emit(ev.Refused(link.peer, opened))
            return None
        if self._catalog.full:
            victim = self._catalog.least(opened.header.seq)
            if victim is None:
                self._table.emit(ev.Refused(link.peer, "too many artifacts are known"))
                return None
            self._drop(victim)
        self._table.emit(ev.Announced(opened))
        return self._catalog.add(opened, catch_up=frame.final is not None)

    def _take_final(self, link: Link, holding: Holding, final: Signed | None) -> None:
        try:
            first = self._catalog.take_final(holding, final)
        except ContradictionError as error:
            self._contradicted(holding.artifact, str(error))
        except WireError as error:
            link.offers[holding.artifact] = False
            self._table.emit(ev.Refused(link.peer, str(error)))
        else:
            if first:
                self._final_known(holding)

    def _announced(self, link: Link, artifact: ArtifactId, mask: int, now: float) -> None:
        holding = self._catalog.artifacts.get(artifact)
        if holding is None:
            return
        if mask & ~holding.peers.full:
            self._table.emit(ev.Refused(link.peer, "it announced segments past the header's bound"))
            mask &= holding.peers.full
        if link.is_host:
            watch = watch_seconds(link, holding.manifest.header.segment_bytes)
            holding.fetch.host_has(link.peer, mask, due=now + watch)
            return
        if holding.seeder:
            mask &= holding.seeder.released
        new = holding.peers.add(link.peer, mask)
        if holding.seeder and new:
            self._note(artifact, holding.seeder.announced(self._links, link.peer, new, now), now)

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
            self._contradicted(holding.artifact, str(error))
            return
        if fault is not None:
            self._ban(link.peer, fault, now)

    # -- the life of an artifact

    def _known(self, manifest: Manifest, *, origin: bool) -> Holding:
        """An artifact of our own process: it is known without being asked about."""
        if self._catalog.full:
            raise ValueError(f"{len(self._catalog.artifacts)} artifacts are known; Retire some first")
        return self._catalog.add(manifest, origin=origin)

    def _final_known(self, holding: Holding) -> None:
        final = holding.manifest.final
        if final is not None:
            holding.fetch.needed = (1 << final.segments) - 1
        if holding.seeder:
            holding.seeder.finish()
        self._offer_to_all(holding)
        self._complete(holding)

    def _complete(self, holding: Holding) -> None:
        fetch = holding.fetch
        if holding.complete or holding.manifest.final is None or fetch.needed & ~fetch.have:
            return
        if not holding.manifest.pages_complete or not (fetch.wanted or holding.seeder):
            return
        holding.complete = True
        if not holding.seeder:
            self._table.emit(ev.Completed(holding.artifact))

    def _contradicted(self, artifact: ArtifactId, reason: str) -> None:
        self._table.emit(ev.Contradicted(artifact, reason))
        self._drop(artifact)

    def _abort(self, signed: Signed) -> None:
        artifact = self._catalog.abort(signed)
        if artifact is None:
            return
        for link in self._links.values():
            self._table.send(link, frames.Drop(signed))
        if artifact in self._catalog.artifacts:
            self._table.emit(ev.AbortSeen(artifact))
            self._drop(artifact)

    def _equivocated(self, evidence: Equivocation) -> None:
        if self._catalog.halted or not self._catalog.is_equivocation(evidence):
            return
        self._catalog.halt()
        for link in self._links.values():
            self._table.send(link, frames.Evidence(evidence.first, evidence.second))
        self._table.emit(ev.Equivocated(evidence))
        for signed in (evidence.first, evidence.second):
            self._drop(artifact_id_of(signed))

    def _drop(self, artifact: ArtifactId) -> None:
        if artifact not in self._catalog.artifacts:
            return
        self._uplink.forget(artifact)
        self._downlink.forget(artifact)
        self._news.pop(artifact, None)
        del self._catalog.artifacts[artifact]
        for link in self._links.values():
            link.offers.pop(artifact, None)
            link.pages = {page for page in link.pages if page[0] != artifact}

    # -- announcing

    def _offer_to_all(self, holding: Holding) -> None:
        for link in self._links.values():
            self._offer(link, holding)

    def _offer(self, link: Link, holding: Holding) -> None:
        """Tell a peer of the artifact, unless it knows as much as we do."""
        final = holding.manifest.signed_final
        if link.offers.get(holding.artifact, -1) < int(final is not None):
            link.offers[holding.artifact] = final is not None
            self._table.send(link, frames.Offer(holding.manifest.signed_header, final))

    def _note(self, artifact: ArtifactId, mask: int, now: float) -> None:
        """Announce these soon, together with others."""
        if mask:
            self._news[artifact] = self._news.get(artifact, 0) | mask
            origin = self._catalog.artifacts[artifact].seeder is not None
            self._flush_at = min(self._flush_at, now + (ORIGIN_BATCH_SECONDS if origin else BATCH_SECONDS))

    def _flush(self) -> None:
        """Tell every peer what it does not hold itself, and hosts everything: they watch who passes segments on."""
        self._flush_at = float("inf")
        news, self._news = self._news, {}
        queue = self._uplink.queued
        for artifact, mask in news.items():
            holding = self._catalog.artifacts[artifact]
            mask &= holding.servable
            for link in self._links.values():
                known = 0 if link.is_host else holding.peers.held.get(link.peer, 0)
                indices = tuple(bits(mask & ~known))
                for start in range(0, len(indices), HAVE_BATCH):
                    self._table.send(link, frames.Have(artifact, indices[start : start + HAVE_BATCH], queue))

    def _settle(self, now: float) -> list[ev.Effect]:
        self._now = now
        self._downlink.schedule(now)
        self._uplink.pump(now)
        return self._table.take_effects()
