"""Whom to dial, at which of its addresses, and when. Sans-IO.

    a target:  WAITING (until due) --due()--> DIALLING --failed--> WAITING, later each time
                                                       --opened--> LINKED --closed--> WAITING

Of two peers the one with the smaller id dials at once, the other YIELD_SECONDS later, so that both seldom dial at the
same moment. Targets are the hosts and the neighbours that swarm/neighbours.py chooses; peers that we do not dial may
dial us. Only addresses that their peer signed (they come with the roster) and that may_dial allows are dialled. A link
that we dialled is a surplus once its peer is no target any more: the other end dials it anew if it is one of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from aurora_p2p.errors import WireError
from aurora_p2p.net.addresses import may_dial, split_bulk
from aurora_p2p.swarm.neighbours import Neighbourhood
from aurora_p2p.swarm.roster import Peer
from aurora_p2p.types import PeerId

YIELD_SECONDS = 2.0
BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 60.0
STABLE_SECONDS = 10.0
"""A link that ends sooner counts as a failed dial: the other side does not want it."""
DIAL_SECONDS = 10.0
"""A dial without an answer is forgotten: the bulk child answers each within its 5 s of connecting and handshake."""


@dataclass(slots=True)
class _Target:
    addresses: tuple[str, ...]
    due: float
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class _Link:
    since: float
    dialled: bool


class Dialler:
    def __init__(self, me: PeerId, rng: Random, local: Sequence[str]) -> None:
        self._me, self._rng, self._local = me, rng, local
        self._hood = Neighbourhood(me, rng, local)
        self._reachable: dict[PeerId, tuple[str, ...]] = {}
        """Whoever may be dialled, and where."""
        self._targets: dict[PeerId, _Target] = {}
        self._linked: dict[PeerId, _Link] = {}
        """Peers with an open link, whoever dialled it."""

    def retarget(self, members: Mapping[PeerId, Peer], hosts: Collection[PeerId], now: float) -> None:
        """A new roster, without banned peers."""
        allowed = {peer: self._allowed(member.record.bulk) for peer, member in members.items() if peer != self._me}
        self._reachable = {peer: addresses for peer, addresses in allowed.items() if addresses}
        known = {peer: member for peer, member in members.items() if peer in self._reachable or peer == self._me}
        self._hood.update(known, hosts, now)
        self._aim(now)

    def is_far(self, peer: PeerId) -> bool:
        """Whether a peer that may be dialled is in another region than we."""
        return self._hood.is_far(peer)

    def surplus(self) -> list[PeerId]:
        """Peers to close the link with: we dialled them, and have chosen others since."""
        return [peer for peer, link in self._linked.items() if link.dialled and peer not in self._targets]

    def due(self, now: float) -> list[tuple[PeerId, str]]:
        """The dials to start now, after the exchange of a few neighbours if that is due as well."""
        if now >= self._hood.next_deadline():
            self._hood.resample(self._linked, now)
            self._aim(now)
        dials = []
        for peer, target in self._targets.items():
            if peer not in self._linked and target.due <= now:
                dials.append((peer, target.addresses[target.attempts % len(target.addresses)]))
                target.due = now + DIAL_SECONDS
        return dials

    def given_up(self, peer: PeerId) -> None:
        """The link is being closed: no surplus any more."""
        self._linked[peer] = replace(self._linked[peer], dialled=False)

    def opened(self, peer: PeerId, now: float, *, dialled: bool = False) -> None:
        self._linked[peer] = _Link(now, dialled)

    def closed(self, peer: PeerId, now: float) -> None:
        link = self._linked.pop(peer, None)
        stable = link is not None and now >= link.since + STABLE_SECONDS
        if peer in self._targets and stable:
            self._targets[peer].attempts = 0
        self.failed(peer, now)

    def failed(self, peer: PeerId, now: float) -> None:
        target = self._targets.get(peer)
        if target is not None:
            self._retry(peer, target, now)

    def next_deadline(self) -> float:
        waiting = (target.due for peer, target in self._targets.items() if peer not in self._linked)
        return min(self._hood.next_deadline(), min(waiting, default=float("inf")))

    def _aim(self, now: float) -> None:
        self._targets = {peer: self._target(peer, self._reachable[peer], now) for peer in self._hood.chosen}

    def _retry(self, peer: PeerId, target: _Target, now: float) -> None:
        wait = min(BACKOFF_SECONDS * 2**target.attempts, MAX_BACKOFF_SECONDS)
        target.attempts = min(target.attempts + 1, 16)
        target.due = now + wait * self._rng.uniform(0.5, 1.0) + self._yield(peer)

    def _target(self, peer: PeerId, addresses: tuple[str, ...], now: float) -> _Target:
        known = self._targets.get(peer)
        if known is None:
            return _Target(addresses, now + self._yield(peer))
        known.addresses = addresses
        return known

    def _yield(self, peer: PeerId) -> float:
        return 0.0 if self._me < peer else YIELD_SECONDS

    def _allowed(self, addresses: Sequence[str]) -> tuple[str, ...]:
        return tuple(address for address in addresses if self._may_dial(address))

    def _may_dial(self, address: str) -> bool:
        try:
            ip, port = split_bulk(address)
        except WireError:
            return False
        return port > 0 and may_dial(ip, self._local)
