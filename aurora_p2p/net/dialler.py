"""Whom to dial, at which of its addresses, and when. Sans-IO.

    a target:  WAITING (until due) --due()--> DIALLING --failed--> WAITING, later each time
                                                       --opened--> LINKED --closed--> WAITING

Of two peers the one with the smaller id dials at once, the other YIELD_SECONDS later, so that both seldom dial at the
same moment. Targets are the hosts and at most NEIGHBOURS others, drawn at random and kept as long as the roster has
them; peers that we do not dial may dial us. Only addresses that their peer signed (they come with the roster) and that
may_dial allows are dialled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from aurora_p2p.errors import WireError
from aurora_p2p.net.addresses import may_dial, split_bulk
from aurora_p2p.types import PeerId

NEIGHBOURS = 24
"""A full mesh of 50 is slower than 24 neighbours each (simulated, swarm.md)."""
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


class Dialler:
    def __init__(self, me: PeerId, rng: Random, local: Sequence[str]) -> None:
        self._me, self._rng, self._local = me, rng, local
        self._targets: dict[PeerId, _Target] = {}
        self._linked: dict[PeerId, float] = {}
        """Peers with an open link, whoever dialled it, and since when."""

    def retarget(self, members: Mapping[PeerId, Sequence[str]], hosts: Collection[PeerId], now: float) -> None:
        """A new roster (without banned peers): member -> its addresses."""
        allowed = {peer: self._allowed(addresses) for peer, addresses in members.items() if peer != self._me}
        reachable = [peer for peer, addresses in allowed.items() if addresses]
        self._rng.shuffle(reachable)
        reachable.sort(key=lambda peer: (peer not in hosts, peer not in self._targets))
        wanted = reachable[: NEIGHBOURS + sum(peer in hosts for peer in reachable)]
        self._targets = {peer: self._target(peer, allowed[peer], now) for peer in wanted}

    def due(self, now: float) -> list[tuple[PeerId, str]]:
        """The dials to start now."""
        dials = []
        for peer, target in self._targets.items():
            if peer not in self._linked and target.due <= now:
                dials.append((peer, target.addresses[target.attempts % len(target.addresses)]))
                target.due = now + DIAL_SECONDS
        return dials

    def opened(self, peer: PeerId, now: float) -> None:
        self._linked[peer] = now

    def closed(self, peer: PeerId, now: float) -> None:
        stable = now >= self._linked.pop(peer, now) + STABLE_SECONDS
        if peer in self._targets and stable:
            self._targets[peer].attempts = 0
        self.failed(peer, now)

    def failed(self, peer: PeerId, now: float) -> None:
        target = self._targets.get(peer)
        if target is not None:
            self._retry(peer, target, now)

    def next_deadline(self) -> float:
        waiting = (target.due for peer, target in self._targets.items() if peer not in self._linked)
        return min(waiting, default=float("inf"))

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
