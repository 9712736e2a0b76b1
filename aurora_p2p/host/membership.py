"""The roster as the host keeps it: who has joined, with which signed record, at which epoch.

Open rosters admit any identity that signs its own record, but only so many of one network (swarm/subnets.py): it counts
where a record says its peer can be dialled, and where its connection comes from. The epoch grows with every change; a
change that arrives while an artifact is in flight waits until it is out (rosters change only between artifacts).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import WireError
from aurora_p2p.swarm.subnets import bulk_ips, subnets_of
from aurora_p2p.types import Epoch, Generation, PeerId, SwarmId
from aurora_p2p.wire.codec import MAX_MESSAGE
from aurora_p2p.wire.control import Join, Reason, Refusal
from aurora_p2p.wire.limits import MAX_MEMBERS
from aurora_p2p.wire.signed import Signed, open_signed, seal
from aurora_p2p.wire.trust import Member, PeerRecord, Roster

GONE_SECONDS = 60.0
"""A member that neither holds a link nor asks for anything this long leaves the roster."""

MAX_RECORD_BYTES = MAX_MESSAGE // MAX_MEMBERS - 512
"""Encoded body of one record: a full roster of the largest is still one message. An honest one has below 1.5 KB."""

MAX_OF_NETWORK = MAX_MEMBERS // 16
"""Members of one /24 or /48 outside `local` networks: a large lab fits, and nobody fills a roster out of one or two."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member as the host knows it. seen: CLOCK_BOOTTIME of its last sign of life."""

    record: PeerRecord
    region: int
    seen: float


class Membership:
    """handle joins and departures; `signed` is the newest roster. local: CIDRs of which any number may join."""

    def __init__(
        self, swarm: SwarmId, admit: Identity, generation: Generation, epoch: Epoch, local: Sequence[str] = ()
    ) -> None:
        self._swarm, self._admit, self._generation, self.local = swarm, admit, generation, tuple(local)
        self.epoch = epoch
        self._records: dict[PeerId, Signed] = {}
        self._opened: dict[PeerId, PeerRecord] = {}
        self._last_seen: dict[PeerId, float] = {}
        self._networks: dict[PeerId, frozenset[str]] = {}
        self._regions: dict[PeerId, int] = {}
        """As measured (survey.py); who has none yet is where the host is."""
        self._changed = True
        self.signed = self._seal()

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._records

    @property
    def peers(self) -> tuple[PeerId, ...]:
        return tuple(self._records)

    def view(self) -> dict[PeerId, MemberView]:
        """Everybody but the host itself."""
        return {
            peer: MemberView(record, self._region_of(peer), self._last_seen[peer])
            for peer, record in self._opened.items()
            if peer != self._own
        }

    def join(self, peer: PeerId, join: Join, *, ip: str = "", now: float) -> Refusal | None:
        """Admit the sender of `join`, or say why not. The record must be its own and newer than the one known.

        ip: where its connection comes from; empty: not known.
        """
        if join.swarm != self._swarm:
            return Refusal(Reason.WRONG_SWARM, f"this host serves {self._swarm}")
        if len(join.record.body) > MAX_RECORD_BYTES:
            return Refusal(Reason.BAD_RECORD, f"a record has at most {MAX_RECORD_BYTES} bytes: name fewer addresses")
        try:
            record = open_signed(join.record, PeerRecord, {peer})
        except WireError as error:
            return Refusal(Reason.BAD_RECORD, str(error)[:500])
        if record.peer != peer or record.swarm != self._swarm:
            return Refusal(Reason.BAD_RECORD, "the record names another peer or swarm")
        if peer not in self._records and len(self._records) >= MAX_MEMBERS:
            return Refusal(Reason.ROSTER_FULL, f"the roster is full ({MAX_MEMBERS})", retry_seconds=GONE_SECONDS)
        known = self._opened.get(peer)
        networks = subnets_of([*bulk_ips(known if known and known.seq >= record.seq else record), ip], self.local)
        full = self._full(networks - self._networks.get(peer, frozenset()))
        if full:
            detail = f"{full} has {MAX_OF_NETWORK} members already"
            return Refusal(Reason.NETWORK_FULL, detail, retry_seconds=GONE_SECONDS)
        self._networks[peer] = networks
        self._admit_record(peer, record, join.record)
        self._last_seen[peer] = now
        return None

    def move(self, regions: Mapping[PeerId, int]) -> bool:
        """Take newly assigned regions; whether any member's is another than before."""
        moved = any(region != self._region_of(peer) for peer, region in regions.items() if peer in self._records)
        self._regions = {peer: region for peer, region in regions.items() if peer in self._records}
        self._changed |= moved
        return moved

    def seen(self, peers: Iterable[PeerId], *, now: float) -> None:
        """These members showed life."""
        for peer in peers:
            if peer in self._last_seen:
                self._last_seen[peer] = now

    def expire(self, *, now: float) -> list[PeerId]:
        """Members silent for GONE_SECONDS leave; returns them."""
        gone = [peer for peer, seen in self._last_seen.items() if now - seen > GONE_SECONDS and peer != self._own]
        for peer in gone:
            del self._records[peer], self._opened[peer], self._last_seen[peer]
            self._networks.pop(peer, None)
            self._regions.pop(peer, None)
            self._changed = True
        return gone

    def add_self(self, identity: Identity, record: PeerRecord, *, now: float) -> None:
        """The host itself is a member: it seeds."""
        self._own = identity.peer
        self._admit_record(identity.peer, record, seal(identity, record))
        self._last_seen[identity.peer] = now

    def renew(self) -> bool:
        """Seal a new epoch if anything changed since the last one. Call between artifacts only."""
        if not self._changed:
            return False
        self.epoch = Epoch(self.epoch + 1)
        self.signed = self._seal()
        return True

    _own: PeerId | None = None

    def _admit_record(self, peer: PeerId, record: PeerRecord, signed: Signed) -> None:
        if peer in self._opened and record.seq <= self._opened[peer].seq:
            return
        self._records[peer], self._opened[peer] = signed, record
        self._changed = True

    def _full(self, networks: Iterable[str]) -> str:
        """One of these networks that has no place left; empty if all have."""
        crowd = Counter(network for inside in self._networks.values() for network in inside)
        return next((network for network in sorted(networks) if crowd[network] >= MAX_OF_NETWORK), "")

    def _region_of(self, peer: PeerId) -> int:
        return self._regions.get(peer, self._regions.get(self._own, 0) if self._own else 0)

    def _seal(self) -> Signed:
        self._changed = False
        members = tuple(Member(record, self._region_of(peer), False) for peer, record in self._records.items())
        return seal(self._admit, Roster(self._swarm, self._generation, self.epoch, members))
