"""Who is in the swarm: a roster that verified, and the rule by which one replaces another.

A RosterView is immutable. It exists only if the admit key signed the roster and every member signed its own record, so
past this door nobody checks a signature again. It covers neither reachability nor behaviour (strikes.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from aurora_p2p.crypto.identity import public_key_of
from aurora_p2p.errors import StaleError, WireError
from aurora_p2p.types import Epoch, Generation, PeerId, SwarmId
from aurora_p2p.wire.signed import Signed, open_signed
from aurora_p2p.wire.trust import PeerRecord, Roster


@dataclass(frozen=True, slots=True)
class Peer:
    """One member: what it signed about itself, and what the host says of it."""

    record: PeerRecord
    region: int
    probation: bool


@dataclass(frozen=True, slots=True)
class RosterView:
    """A verified roster. `signed` is kept to be shown to others and written to disk."""

    signed: Signed
    generation: Generation
    epoch: Epoch
    peers: dict[PeerId, Peer]

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self.peers

    def __len__(self) -> int:
        return len(self.peers)

    def bulk_addresses(self, peer: PeerId) -> tuple[str, ...]:
        """ "host:port" of the peer's data plane, as it signed them; empty for a stranger."""
        member = self.peers.get(peer)
        return member.record.bulk if member else ()


def open_roster(signed: Signed, *, swarm: SwarmId, admit: PeerId, newer_than: RosterView | None = None) -> RosterView:
    """Verify a roster and each member's record.

    newer_than: the view it would replace; the same body is accepted again.
    Raises SignatureError or WireError when anything in it does not verify, StaleError when (generation, epoch) goes
    back, or repeats with another body.
    """
    roster = open_signed(signed, Roster, {admit})
    if roster.swarm != swarm:
        raise WireError("the roster belongs to another swarm")
    if newer_than is not None and signed.body != newer_than.signed.body:
        known, offered = (newer_than.generation, newer_than.epoch), (roster.generation, roster.epoch)
        if offered <= known:
            raise StaleError(f"roster {offered} does not replace roster {known}")
    peers: dict[PeerId, Peer] = {}
    for member in roster.members:
        record = open_record(member.record, swarm=swarm)
        if record.peer in peers:
            raise WireError(f"the roster names {record.peer} twice")
        peers[record.peer] = Peer(record, member.region, member.probation)
    return RosterView(signed, roster.generation, roster.epoch, peers)


def open_record(signed: Signed, *, swarm: SwarmId) -> PeerRecord:
    """A peer's own record: signed by the peer it names, for this swarm. Raises SignatureError or WireError."""
    public_key_of(signed.signer)
    record = open_signed(signed, PeerRecord, {signed.signer})
    if record.peer != signed.signer:
        raise WireError(f"{signed.signer} signed a record of {record.peer}")
    if record.swarm != swarm:
        raise WireError("the peer record belongs to another swarm")
    return record
