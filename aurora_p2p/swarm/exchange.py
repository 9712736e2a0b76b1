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

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.announcing import Announcer
from aurora_p2p.swarm.bitset import mask_of
from aurora_p2p.swarm.catalog import Catalog, Holding
from aurora_p2p.swarm.downlink import Downlink
from aurora_p2p.swarm.geography import Geography
from aurora_p2p.swarm.inbound import Inbound
from aurora_p2p.swarm.lifecycle import Lifecycle
from aurora_p2p.swarm.members import Members
from aurora_p2p.swarm.overseas import stored
from aurora_p2p.swarm.standing import Standing, standing_of
from aurora_p2p.swarm.table import Table
from aurora_p2p.swarm.uplink import Uplink
from aurora_p2p.types import ArtifactId, PeerId, SwarmId
from aurora_p2p.wire.exchange import Cancel, Credit, Have, RequestSegments

if TYPE_CHECKING:
    from random import Random


NOTHING_TO_ASK = (ev.SegmentOut, ev.Stored)
"""Events that leave what can be asked of whom as it was."""
NOTHING_TO_ASK_FRAMES = (Have, Cancel, Credit, RequestSegments)
"""Frames that do; a Have only while it announces nothing that we could ask for (inbound.py)."""


@dataclass(frozen=True, slots=True)
class ExchangeConfig:
    """swarm: whose headers are admitted. up_kbps: upload that we offer, kbit/s; 0 does not say."""

    swarm: SwarmId
    up_kbps: int = 0


class Exchange:
    def __init__(self, config: ExchangeConfig, me: PeerId, rng: Random) -> None:
        self._catalog = Catalog(config.swarm, Geography(me))
        self._table = Table(self._catalog, rng)
        self._links = self._table.links
        self._uplink, self._downlink = Uplink(self._table, config.up_kbps), Downlink(self._table)
        self._announcer = Announcer(self._table, self._uplink)
        self._members = Members(self._table, self._announcer, config.up_kbps)
        self._lifecycle = Lifecycle(self._table, self._announcer, self._uplink, self._downlink)
        self._inbound = Inbound(
            self._table, self._announcer, self._uplink, self._downlink, self._lifecycle, self._members
        )
        self._now = float("-inf")
        """The time of the last event."""

    # -- the machine

    def handle(self, event: ev.Event, *, now: float) -> list[ev.Effect]:
        """One event in, effects out, to be carried out in order."""
        if not isinstance(event, NOTHING_TO_ASK) and not (
            isinstance(event, ev.FrameIn) and isinstance(event.frame, NOTHING_TO_ASK_FRAMES)
        ):
            self._table.askable = True
        match event:
            case ev.LinkUp(peer):
                self._members.up(peer, now)
            case ev.LinkDown(peer):
                self._members.forget(peer, now)
            case ev.FrameIn() | ev.SegmentIn() | ev.SegmentLost():
                self._inbound.take(event, now)
            case ev.SegmentOut():
                self._left(event, now)
            case ev.SendFailed():
                self._uplink.failed(event)
            case ev.TrustChanged():
                self._trust(event)
            case ev.RosterChanged(roster):
                self._members.roster(roster, now)
            case ev.PauseFetch(paused):
                self._pause(paused)
            case ev.Aborted(abort):
                self._lifecycle.abort(abort)
            case _:
                self._from_store(event, now)
        return self._settle(now)

    def expire(self, *, now: float) -> list[ev.Effect]:
        """What follows from time alone. Call it when next_deadline has passed, and after a suspend."""
        self._table.askable = True
        self._downlink.expire(now)
        self._uplink.expire(now)
        for holding, seeder in self._table.seeding():
            self._announcer.note(holding, seeder.expire(self._links, now), now)
        self._announcer.expire(now)
        return self._settle(now)

    def next_deadline(self) -> float:
        """When expire() has something to do; infinite when only an event can bring it."""
        now = self._now
        due = min(self._announcer.next_deadline(), self._downlink.next_deadline(now), self._uplink.next_deadline(now))
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
        holdings, strikes = self._catalog.artifacts.values(), self._members.strikes
        return {peer: standing_of(link, holdings, strikes.count(peer)) for peer, link in self._links.items()}

    # -- our own process

    def _from_store(self, event: ev.Event, now: float) -> None:
        match event:
            case ev.Publish(manifest):
                self._announcer.offer_to_all(self._lifecycle.known(manifest, origin=True))
            case ev.Restored(manifest, indices, origin):
                self._restore(manifest, mask_of(indices), origin)
            case ev.Accept(artifact) | ev.Decline(artifact):
                self._answer(artifact, accepted=isinstance(event, ev.Accept))
            case ev.Probe(artifact, indices):
                self._probe(artifact, mask_of(indices), now)
            case ev.Produced() | ev.Finished() | ev.Stored() | ev.StoreFailed():
                holding_or_none = self._catalog.artifacts.get(event.artifact)
                if holding_or_none is not None:
                    self._progress(holding_or_none, event, now)
            case ev.Retire(artifact):
                self._lifecycle.drop(artifact)

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
                    self._announcer.note(holding, holding.seeder.produce(new), now)
            case ev.Finished():
                self._lifecycle.final_known(holding)
            case ev.Stored(_, index):
                holding.fetch.verifying &= ~(1 << index)
                holding.fetch.have |= 1 << index
                self._announcer.note(holding, 1 << index, now)
                stored(self._table, holding, index, now)
                self._lifecycle.complete(holding)
                self._lifecycle.grant(holding)
            case ev.StoreFailed(_, index):
                holding.fetch.verifying &= ~(1 << index)
                holding.fetch.have &= ~(1 << index)

    def _restore(self, manifest: Manifest, have: int, origin: bool) -> None:
        holding = self._lifecycle.known(manifest, origin=origin)
        holding.fetch.have = have
        holding.fetch.wanted = not origin
        if holding.seeder:
            holding.seeder.produced = holding.seeder.released = have
        if manifest.final is None:
            self._announcer.offer_to_all(holding)
        else:
            self._lifecycle.final_known(holding)

    def _answer(self, artifact: ArtifactId, *, accepted: bool) -> None:
        holding = self._catalog.artifacts.get(artifact)
        if holding is None or holding.seeder:
            return
        holding.fetch.wanted, holding.fetch.only = accepted, holding.peers.full
        if accepted:
            self._lifecycle.complete(holding)
            self._lifecycle.grant(holding)

    def _probe(self, artifact: ArtifactId, mask: int, now: float) -> None:
        holding = self._catalog.artifacts.get(artifact)
        if holding is None or holding.seeder:
            return
        holding.fetch.wanted, holding.fetch.only = True, mask & holding.peers.full
        for link in self._links.values():
            self._downlink.probe(link, holding, now)

    def _pause(self, paused: bool) -> None:
        self._downlink.paused = paused
        if not paused:
            for holding in self._catalog.artifacts.values():
                self._lifecycle.grant(holding)

    def _trust(self, event: ev.TrustChanged) -> None:
        self._catalog.trust(event)
        for link in self._links.values():
            link.is_host = link.peer in event.hosts

    def _left(self, event: ev.SegmentOut, now: float) -> None:
        confirmed = self._uplink.out(event, now)
        if confirmed:
            self._announcer.note(self._catalog.artifacts[event.artifact], confirmed, now)

    def _settle(self, now: float) -> list[ev.Effect]:
        self._now = now
        if self._table.askable:
            self._table.askable = False
            self._downlink.schedule(now)
        self._uplink.pump(now)
        return self._table.take_effects()
