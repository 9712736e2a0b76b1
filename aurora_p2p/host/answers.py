"""What the host answers to nodes: joining, freshness, roster, leases, results.

Every request comes over an authenticated libp2p connection, so the sender's peer id is known; lease requests and
results carry signatures as well, because they are kept. Nothing is granted or acknowledged before the ledger has it on
disk. A refusal always has a name.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from aurora_p2p.crypto.roles import RoleKeys
from aurora_p2p.crypto.sign import WIRE_MIN, WIRE_VERSION
from aurora_p2p.errors import WireError
from aurora_p2p.host.membership import Membership
from aurora_p2p.host.progress import ProgressBoard
from aurora_p2p.host.publication import Newest
from aurora_p2p.lease.events import Effect, Event, From, Reply, records_of, reply_of
from aurora_p2p.lease.pool import WorkPool
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import reach
from aurora_p2p.local.output import Output, clean
from aurora_p2p.store.ledger import Ledger
from aurora_p2p.types import Generation, PeerId, Record, SwarmId
from aurora_p2p.wire.control import (
    Challenge,
    CommitFailed,
    Distances,
    Grant,
    HeadAnswer,
    Join,
    Lease,
    LeaseRequest,
    Noted,
    Progress,
    Reason,
    Refusal,
    Release,
    Renew,
    Request,
    RosterReply,
    RosterRequest,
    SignedLeaseRequest,
    Submit,
    Welcome,
)
from aurora_p2p.wire.signed import Signed, open_signed, seal
from aurora_p2p.wire.trainer import SubmitPrompts
from aurora_p2p.wire.trust import Charter, Head

WORK_WAIT_SECONDS = 2.0
"""How long a lease request may wait for work to appear: saves a round trip, costs an open stream."""
CLOSED_SECONDS = 5.0
"""When a node may ask again while no leases are granted: soon enough that `resume` is felt at once."""


class PoolDoor:
    """The work pool with its ledger: one call is one event, its records on disk before its reply is returned."""

    def __init__(self, pool: WorkPool, ledger: Ledger) -> None:
        self.pool, self._ledger = pool, ledger
        self._changed = trio.Event()
        self.happened: Callable[[Event | None, list[Effect]], None] = lambda event, effects: None
        """Told what each event (None: a deadline) led to, once the ledger has kept it."""

    @property
    def disk_full(self) -> bool:
        """Whether the ledger waits for room: nothing can be granted, and what is asked would only time out."""
        return bool(self._ledger.waits)

    async def handle(self, event: Event) -> Reply | None:
        """Carry out one event; raises StoreError when the ledger cannot keep it."""
        effects = self.pool.handle(event, now=boottime())
        _reach_decided(event, effects)
        await self._ledger.commit(records_of(effects))
        _reach_durable(event, effects)
        self.happened(event, effects)
        if not isinstance(event, From) or len(effects) > 1:
            self.wake()
        return reply_of(effects)

    def wake(self) -> None:
        """Let everyone who waits look again."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait_for_change(self, seconds: float) -> None:
        """Until something changes, or `seconds`; at once when they are over."""
        with trio.move_on_after(max(seconds, 0.0)):
            await self._changed.wait()

    async def run(self) -> None:
        """End leases whose deadline passes, until cancelled. The wait is capped so that a suspend is noticed.

        Raises StoreError once the ledger has failed, also at somebody else's commit: the host must not outlive it.
        """
        while True:
            await trio.sleep(min(max(self.pool.next_deadline() - boottime(), 0.01), 1.0))
            effects = self.pool.expire(now=boottime())
            await self._ledger.commit(records_of(effects))
            if effects:
                self.happened(None, effects)
                self.wake()


def _reach_decided(event: Event, effects: list[Effect]) -> None:
    """The crash points between a decision in memory and the disk."""
    match event:
        case From(message=Submit()):
            reach("results.decided")
        case From() if _grants(effects):
            reach("grant.decided")
        case SubmitPrompts():
            reach("prompts.decided")


def _reach_durable(event: Event, effects: list[Effect]) -> None:
    """The crash points between the disk and the answer."""
    match event:
        case From(message=Submit()):
            reach("results.durable")
        case From() if _grants(effects):
            reach("grant.durable")
        case SubmitPrompts():
            reach("prompts.durable")


def _grants(effects: list[Effect]) -> bool:
    reply = reply_of(effects)
    return reply is not None and isinstance(reply.message, Lease)


class Answers:
    """Answers one swarm's nodes.

    newest: the desk's newest publication. roster_changed: called when the roster may change. ip_of: where a peer's
    connection comes from. take_distances: hears a member's word on others, or refuses it. Leases are refused, and
    results taken, while `draining` (the host is stopping) or `paused` (its owner wants no new ones). Leases are also
    refused while the ledger's disk is full.
    """

    def __init__(
        self,
        swarm: SwarmId,
        keys: RoleKeys,
        charter: Charter,
        generation: Generation,
        members: Membership,
        door: PoolDoor,
        output: Output,
    ) -> None:
        self._swarm, self._keys, self._charter, self._generation = swarm, keys, charter, generation
        self._members, self._door, self._output = members, door, output
        self.newest: Callable[[], Newest | None] = lambda: None
        self.roster_changed: Callable[[], None] = lambda: None
        self.ip_of: Callable[[PeerId], str] = lambda peer: ""
        self.take_distances: Callable[[PeerId, Distances], Refusal | None] = lambda peer, distances: None
        self.progress = ProgressBoard()
        self.draining = self.paused = False

    async def answer(self, peer: PeerId, request: Request) -> Record:
        """The reply to one request of an authenticated peer."""
        match request:
            case Join():
                return self._join(peer, request)
            case Challenge(nonce):
                self._members.seen([peer], now=boottime())
                return HeadAnswer(self._charter, self.head(nonce))
            case RosterRequest():
                return RosterReply(self._members.signed)
            case _ if peer not in self._members:
                return Refusal(Reason.NOT_A_MEMBER, "join the swarm first")
            case SignedLeaseRequest(signed):
                self._members.seen([peer], now=boottime())
                return await self._lease(peer, signed)
            case Submit() | Release() | Renew():
                self._members.seen([peer], now=boottime())
                reply = await self._door.handle(From(peer, request))
                return reply.message if reply else Noted()
            case CommitFailed(version, detail):
                text = f"{peer} could not commit version {version}: {clean(detail)}"
                self._output.event("commit-failed", text, peer=peer, version=version, detail=clean(detail))
                return Noted()
            case Progress():
                self._members.seen([peer], now=boottime())
                return self.progress.report(peer, request, now=boottime()) or Noted()
            case Distances():
                return self.take_distances(peer, request) or Noted()

    def head(self, nonce: bytes) -> Signed | None:
        """HEAD over a nonce (empty: a gossip hint); None while nothing is published."""
        newest = self.newest()
        if newest is None:
            return None
        head = Head(
            swarm=self._swarm,
            nonce=nonce,
            generation=self._generation,
            roster_epoch=self._members.epoch,
            seq=newest.seq,
            version=newest.version,
            artifact=newest.artifact,
            manifest_hash=newest.manifest_hash,
            min_wire=WIRE_MIN,
        )
        return seal(self._keys.publish, head)

    def _join(self, peer: PeerId, join: Join) -> Record:
        if join.wire_min > WIRE_VERSION or join.wire_max < WIRE_MIN:
            detail = (
                f"this host speaks wire versions {WIRE_MIN} to {WIRE_VERSION}, you {join.wire_min} to {join.wire_max}"
            )
            return Refusal(Reason.WIRE_VERSION, f"{detail}; upgrade the older side")
        known = peer in self._members
        refusal = self._members.join(peer, join, ip=self.ip_of(peer), now=boottime())
        if refusal is not None:
            return refusal
        if not known:
            self._output.event("joined", f"node {peer} joined", peer=peer)
        self.roster_changed()
        return Welcome(self._charter, self._members.signed, self.head(join.nonce))

    async def _lease(self, peer: PeerId, signed: Signed) -> Record:
        try:
            request = open_signed(signed, LeaseRequest, {peer})
        except WireError as error:
            return Refusal(Reason.BAD_SIGNATURE, str(error)[:500])
        give_up = boottime() + WORK_WAIT_SECONDS
        while (refusal := self._closed()) is None:
            reply = await self._door.handle(From(peer, request))
            message = reply.message if reply else Refusal(Reason.NO_WORK)
            if isinstance(message, Lease):
                head = self.head(request.nonce)
                return Grant(seal(self._keys.lease, message), head) if head else Refusal(Reason.NO_WORK)
            if not isinstance(message, Refusal) or message.reason is not Reason.NO_WORK:
                return message
            outdated = self._door.pool.book.newest > request.version  # newer weights are what it should take next
            if outdated or boottime() >= give_up:
                return message
            await self._door.wait_for_change(min(give_up - boottime(), self._door.pool.options.tail_seconds))
        return refusal

    def _closed(self) -> Refusal | None:
        """Why nobody gets a lease now."""
        if self.draining:
            return Refusal(Reason.DRAINING, "the host is stopping", retry_seconds=2 * CLOSED_SECONDS)
        if self.paused:
            return Refusal(Reason.PAUSED, "the host's owner grants no leases now", retry_seconds=CLOSED_SECONDS)
        if self._door.disk_full:
            return Refusal(Reason.DISK_FULL, "the host's disk is full", retry_seconds=CLOSED_SECONDS)
        return None
