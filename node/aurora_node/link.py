"""A node's side of the control plane: finding a host, joining, staying fresh, asking and submitting.

    FINDING -> JOINED (charter and roster verified) -> FRESH (a HEAD over our own nonce, younger than its TTL)
                  ^------------- host unreachable: every address known is tried again ------------/

A bootstrap or a stranger can point anywhere; what counts is the charter, signed by the root that the swarm id names,
and that the peer which answers is one of its hosts. Addresses tried: the ticket's hosts, those remembered from earlier
runs, those registered at the bootstraps.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass

import trio

from aurora_node.why import REFUSES
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.crypto.sign import WIRE_MIN, WIRE_VERSION
from aurora_p2p.errors import AuroraError, RefusedError, StaleError, UnreachableError, UsageError, WireError
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.output import clean
from aurora_p2p.net.addresses import control_ip, may_dial
from aurora_p2p.net.host import ControlHost
from aurora_p2p.net.rendezvous import discover
from aurora_p2p.store.peers import SwarmMemory
from aurora_p2p.swarm.freshness import Trust
from aurora_p2p.swarm.roster import RosterView, open_record
from aurora_p2p.types import Epoch, PeerId, Record, RunId
from aurora_p2p.wire.codec import decode
from aurora_p2p.wire.control import (
    CONTROL_PROTOCOL,
    LEASE_PROTOCOL,
    RESULT_PROTOCOL,
    Challenge,
    CommitFailed,
    Distances,
    Grant,
    HeadAnswer,
    Join,
    Lease,
    Noted,
    Progress,
    Reason,
    Receipts,
    Refusal,
    Release,
    Renew,
    Renewed,
    Reply,
    RosterReply,
    RosterRequest,
    SignedLeaseRequest,
    Submit,
    Welcome,
)
from aurora_p2p.wire.names import namespace_of
from aurora_p2p.wire.signed import Signed, open_signed, seal
from aurora_p2p.wire.ticket import Ticket
from aurora_p2p.wire.trust import Charter, Equivocation, PeerRecord, Roster

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 10.0
REFRESH_SECONDS = 40.0
"""A third of the HEAD's time to live: two attempts may fail before the node is stale."""
NEWS_SECONDS = 2.0
"""Between questions for a newer roster while hints are missing."""
MAX_RETRY_SECONDS = 15.0
MAX_TOLD = 6
"""Failed attempts named to a person."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look: multiaddrs with /p2p/, and the networks that may be dialled."""

    ticket: Ticket
    bootstraps: tuple[str, ...]
    local: tuple[str, ...]


class HostLink:
    """One node's connection to its swarm's host. `run` is known once an artifact's header is."""

    def __init__(
        self, identity: Identity, control: ControlHost, place: Place, memory: SwarmMemory, trust: Trust
    ) -> None:
        self._identity, self._control, self._place = identity, control, place
        self._memory, self.trust = memory, trust
        self._host: PeerId | None = None
        self._tried: dict[str, str] = {}
        self._dialled = False
        self.tried: list[str] = []
        """Where the last search for a host failed, and why: at most a few lines."""
        self.is_member = False
        self._lost = trio.Event()
        """The host does not answer, or does not know us: do not wait for the next refresh."""
        self.run = RunId(bytes(16))
        self.on_roster: Callable[[RosterView], None] = lambda roster: None
        self.on_charter: Callable[[], None] = lambda: None
        self.on_equivocation: Callable[[Equivocation], None] = lambda evidence: None

    @property
    def host(self) -> PeerId | None:
        """The host that answered last."""
        return self._host

    # ---- finding and joining

    async def join(self, record: PeerRecord) -> None:
        """Find a host and become a member. Every candidate is tried: who refuses, or is behind, need not be the host.

        Raises RefusedError or StaleError when one of them said so, UsageError when there is nobody to ask, else
        UnreachableError with every attempt.
        """
        self._tried, self._dialled = {}, False
        said: RefusedError | StaleError | None = None
        async with aclosing(self._candidates()) as candidates:
            async for peer in candidates:
                try:
                    await self._join_at(peer, record)
                except (RefusedError, StaleError) as error:
                    said, self._tried[str(peer)] = said or error, str(error)
                except (UnreachableError, WireError) as error:
                    self._tried[str(peer)] = str(error)
                else:
                    self._host, self.is_member, self.tried = peer, True, []
                    return
        self.tried = [clean(f"{where}: {why}") for where, why in list(self._tried.items())[:MAX_TOLD]]
        raise said or self._unreachable()

    async def _join_at(self, peer: PeerId, record: PeerRecord) -> None:
        join = Join(self._place.ticket.swarm, seal(self._identity, record), WIRE_MIN, WIRE_VERSION, self.new_nonce())
        reply = await self._ask(peer, CONTROL_PROTOCOL, join, ANSWER_SECONDS)
        if isinstance(reply, Refusal):
            raise RefusedError(
                f"{REFUSES}{reply.reason.value.replace('_', ' ')}: {clean(reply.detail)}",
                reason=reply.reason,
                hint=_REFUSAL_HINTS.get(reply.reason, ""),
                retry_seconds=reply.retry_seconds,
            )
        if not isinstance(reply, Welcome):
            raise WireError(f"{peer} answered a join with {type(reply).__name__}")
        self._take_charter(reply.charter)
        if peer not in self.trust.hosts:
            raise WireError(f"{peer} is not a host of this swarm")
        self._take_roster(reply.roster)
        self._take_head(reply.head)

    async def _candidates(self) -> AsyncGenerator[PeerId, None]:
        """Peers that may be hosts, connected, each once."""
        seen: set[str] = set()
        for address in [*self._place.ticket.hosts, *self._remembered()]:
            peer = await self._connect(address, seen)
            if peer is not None:
                yield peer
        for address in dict.fromkeys([*self._place.ticket.bootstraps, *self._place.bootstraps]):
            for found in await self._discovered(address):
                peer = await self._connect(found, seen)
                if peer is not None:
                    yield peer

    async def _discovered(self, bootstrap: str) -> list[str]:
        self._dialled = True
        try:
            peer = await self._control.connect(bootstrap, seconds=CONNECT_SECONDS)
            found = await discover(self._control, peer, namespace_of(self._place.ticket.swarm), seconds=ANSWER_SECONDS)
        except (UnreachableError, RefusedError, WireError) as error:
            self._tried[f"bootstrap {bootstrap}"] = str(error).removeprefix(f"cannot reach {bootstrap}: ")
            return []
        if not found:
            self._tried[f"bootstrap {bootstrap}"] = "knows no host of this swarm"
        return [address for _, addresses in found for address in addresses]

    def _remembered(self) -> Iterable[str]:
        for signed in self._memory.peers():
            with suppress(WireError):
                record = open_record(signed, swarm=self._place.ticket.swarm)
                if self.trust.charter is not None and record.peer in self.trust.hosts:
                    yield from (f"{address}/p2p/{record.peer}" for address in record.control)

    async def _connect(self, address: str, seen: set[str]) -> PeerId | None:
        if address in seen:
            return None
        seen.add(address)
        try:
            if not may_dial(control_ip(address), self._place.local):
                raise WireError("a private address outside the ticket's local networks; allow it with --local CIDR")
            self._dialled = True
            return await self._control.connect(address, seconds=CONNECT_SECONDS)
        except (UnreachableError, WireError) as error:
            self._tried[address] = str(error).removeprefix(f"cannot reach {address}: ")
            return None

    def _unreachable(self) -> UsageError | UnreachableError:
        if not self._tried:
            return UsageError(
                "there is nowhere to look for this swarm", hint="use the host's ticket, or add --bootstrap ADDR"
            )
        attempts = "; ".join(self.tried)
        if not self._dialled:
            return UsageError(
                f"no address of {self._place.ticket.swarm} may be dialled ({attempts})",
                hint="add --local CIDR for a private network that is yours, or ask for another ticket",
            )
        return UnreachableError(
            f"no host of {self._place.ticket.swarm} answered ({attempts})",
            hint="check that `aurora-host run` is up and its address can be reached from here",
        )

    # ---- freshness and roster

    async def stay_fresh(self, record: Callable[[], PeerRecord]) -> None:
        """Challenge and refresh until cancelled; join again when the host was lost, or has lost us.

        Nothing that a host or a stranger says ends it: the node goes on serving what it has.
        """
        retry = 1.0
        while True:
            try:
                if not self.is_member:
                    await self.join(record())
                await self.challenge()
            except AuroraError:
                self.is_member = False
                await trio.sleep(retry)
                retry = min(2 * retry, MAX_RETRY_SECONDS)
                continue
            retry = 1.0
            with trio.move_on_after(REFRESH_SECONDS if self.trust.is_fresh(boottime()) else NEWS_SECONDS):
                await self._lost.wait()
            self._lost = trio.Event()

    async def challenge(self) -> None:
        """Ask the host for a HEAD over a new nonce. Raises UnreachableError, WireError, StaleError."""
        reply = await self._ask_host(CONTROL_PROTOCOL, Challenge(self.new_nonce()), ANSWER_SECONDS)
        if not isinstance(reply, HeadAnswer):
            raise WireError(f"the host answered a challenge with {type(reply).__name__}")
        self._take_charter(reply.charter)
        self._take_head(reply.head)
        await self.refresh_roster()

    async def refresh_roster(self) -> None:
        """Fetch the roster if the host has a newer one."""
        have = self.trust.roster.epoch if self.trust.roster else Epoch(0)
        reply = await self._ask_host(CONTROL_PROTOCOL, RosterRequest(have), ANSWER_SECONDS)
        if not isinstance(reply, RosterReply):
            raise WireError(f"the host answered a roster request with {type(reply).__name__}")
        self._take_roster(reply.roster)

    def new_nonce(self) -> bytes:
        """A challenge that is being sent now: the age of the answer counts from here."""
        nonce = os.urandom(32)
        self.trust.challenge(nonce, boottime())
        return nonce

    def _take_charter(self, charter: Charter) -> None:
        if self.trust.adopt(charter):
            self._memory.save_charter(charter)
            self.on_charter()

    def _take_head(self, head: Signed | None) -> None:
        if head is None:
            return
        answer = self.trust.answer(head, boottime())
        if isinstance(answer, Equivocation):
            self.on_equivocation(answer)
            raise StaleError("the publisher signed two artifacts with one number")
        self._memory.raise_floor(self.trust.floor)

    def _take_roster(self, signed: Signed) -> None:
        known = self.trust.roster
        roster = self.trust.take_roster(signed)
        if known is None or roster.epoch != known.epoch:
            self._memory.remember(member.record for member in decode(signed.body, Roster).members)
            self.on_roster(roster)

    # ---- work

    async def ask_lease(self, request: SignedLeaseRequest, seconds: float) -> Grant | Refusal:
        """Ask for work. A grant comes with a HEAD over the request's nonce, which is checked here."""
        reply = await self._ask_host(LEASE_PROTOCOL, request, seconds)
        if isinstance(reply, Grant):
            self._take_head(reply.head)
        elif not isinstance(reply, Refusal):
            raise WireError(f"the host answered a lease request with {type(reply).__name__}")
        return reply

    def open_lease(self, grant: Grant) -> Lease:
        """The lease inside a grant. Raises SignatureError unless the lease key signed it."""
        return open_signed(grant.lease, Lease, {self.trust.lease})

    async def submit(self, results: Submit, seconds: float) -> Receipts | Refusal:
        reply = await self._ask_host(RESULT_PROTOCOL, results, seconds)
        if not isinstance(reply, Receipts | Refusal):
            raise WireError(f"the host answered results with {type(reply).__name__}")
        return reply

    async def release(self, release: Release) -> None:
        await self._ask_host(RESULT_PROTOCOL, release, ANSWER_SECONDS)

    async def renew(self, renew: Renew, seconds: float) -> float | None:
        """The time a lease has from this request on; None when the host does not renew it."""
        reply = await self._ask_host(RESULT_PROTOCOL, renew, seconds)
        if isinstance(reply, Refusal) and reply.reason is Reason.NOT_A_MEMBER:
            raise UnreachableError("not a member just now")
        return reply.seconds if isinstance(reply, Renewed) else None

    async def commit_failed(self, failure: CommitFailed) -> None:
        """Tell the host that this node re-bases; best effort."""
        with suppress(AuroraError):
            await self._ask_host(RESULT_PROTOCOL, failure, ANSWER_SECONDS)

    async def report(self, report: Progress | Distances) -> bool:
        """Tell the host what this node does, or how far others are; whether it took it. Best effort."""
        with suppress(AuroraError):
            return isinstance(await self._ask_host(RESULT_PROTOCOL, report, ANSWER_SECONDS), Noted)
        return False

    async def _ask_host(self, protocol: str, message: Record, seconds: float) -> Reply:
        if self._host is None:
            raise UnreachableError("no host is known yet")
        try:
            reply = await self._ask(self._host, protocol, message, seconds)
        except UnreachableError:
            self._lost.set()
            raise
        if isinstance(reply, Refusal) and reply.reason is Reason.NOT_A_MEMBER:
            self.is_member = False
            self._lost.set()
        return reply

    async def _ask(self, peer: PeerId, protocol: str, message: Record, seconds: float) -> Reply:
        return await self._control.request(peer, protocol, message, Reply, seconds=seconds)  # type: ignore[arg-type]


_REFUSAL_HINTS = {
    Reason.WIRE_VERSION: "upgrade aurora-p2p on the older side",
    Reason.WRONG_SWARM: "the address belongs to another swarm: ask for a new ticket",
    Reason.ROSTER_FULL: "try again in a minute",
    Reason.NETWORK_FULL: "too many of your network are members: try later, or ask the host to name it in `local`",
}
