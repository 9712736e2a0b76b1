"""Models of BitTorrent, and of super-seeding with plain pulls, for benchmarks.swarm_sim.

    bittorrent  Links are drawn at random from the whole swarm. Every piece is announced to everybody at once; the first
                piece is drawn at random, then rarest first; QUEUE requests are outstanding at a peer. A peer uploads to
                SLOTS interested ones: slots are given while they are free, and given anew every CHOKE_SECONDS to those
                that sent most (who needs nothing: to those that took most), one of them by chance, and kept for
                OPTIMISTIC_SECONDS. What is not answered for `timeout` is asked of others. End game: what is asked for
                already is asked of a second peer.
    superseed   The same without choking, over the links of our own policy. The origin gives each piece once, to peers
                in turn, PUSHED at a time to a peer until it sees one of them elsewhere, and again after `timeout`; when
                all are given it announces and serves like others. Nodes pull from whoever has a piece, in any region.

A piece is a segment of 256 KiB and comes whole from one peer; clients cut it into blocks of 16 KiB.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.bitset import bits, random_bit
from aurora_p2p.swarm.exchange import ExchangeConfig
from aurora_p2p.types import ArtifactId, PeerId, Record
from aurora_p2p.wire.exchange import Cancel, Have, RequestSegments
from benchmarks.swarm_sim_sharer import NEVER, Description, Shared, Sharer

SLOTS = 4
CHOKE_SECONDS = 10.0
OPTIMISTIC_SECONDS = 30.0
QUEUE = 4
"""Pieces outstanding at one peer: 64 blocks of 16 KiB."""
COPIES = 2
TIMEOUT_SECONDS = 20.0
PUSHED = 2
GIVEN = 32
"""Pieces that a super-seed has on its uplink at a time: with fewer, connections that start slowly leave it idle."""
SUPERSEED_TIMEOUT_SECONDS = 4.0
TICK_SECONDS = 0.5


class Choke(Record, frozen=True, tag="choke"):
    choked: bool


class Interested(Record, frozen=True, tag="interested"):
    interested: bool


Piece = tuple[ArtifactId, int]


@dataclass(slots=True)
class Remote:
    """A linked peer: what we asked of it, and who chokes whom."""

    asked: dict[Piece, float] = field(default_factory=dict)
    chokes_us: bool = False
    choked: bool = False
    interested: bool = False
    told_interest: bool = False
    snubbed_until: float = 0.0
    """It did not answer in time."""
    received: int = 0
    sent: int = 0


class Puller(Sharer):
    """Announces what it has, asks for what is rare, serves whom it does not choke."""

    timeout = SUPERSEED_TIMEOUT_SECONDS
    starts_choked = False

    def __init__(self, config: ExchangeConfig, me: PeerId, rng: Random) -> None:
        super().__init__(config, me, rng)
        self.remotes: dict[PeerId, Remote] = {}
        self._copies: Counter[Piece] = Counter()
        self._tick_at = NEVER

    def next_deadline(self) -> float:
        return self._tick_at

    def greet(self, peer: PeerId) -> None:
        self.remotes[peer] = Remote(chokes_us=self.starts_choked, choked=self.starts_choked)
        for artifact, shared in self.shared.items():
            for described in shared.descriptions:
                self.tell(peer, described)
            held = tuple(bits(self.announced(artifact)))
            if held:
                self.tell(peer, Have(artifact, held, 0))

    def parted(self, peer: PeerId) -> None:
        self._give_up(self.remotes.pop(peer))

    def announced(self, artifact: ArtifactId) -> int:
        """What peers may know that we have."""
        return self.shared[artifact].have

    def frame(self, peer: PeerId, frame: Any, now: float) -> None:
        remote = self.remotes[peer]
        match frame:
            case Description():
                self.learn(frame, peer)
            case Have(artifact, indices):
                self.shared[artifact].peers.add(peer, sum(1 << index for index in indices))
                self.seen(peer, artifact, indices)
                if not remote.told_interest and not self.shared[artifact].completed and not self.is_origin:
                    remote.told_interest = True
                    self.tell(peer, Interested(True))
            case RequestSegments(artifact, _, indices) if not remote.choked:
                for index in indices:
                    if self.announced(artifact) >> index & 1:
                        remote.sent += 1
                        self.give(peer, artifact, index)
            case Cancel(artifact, indices):
                self.emit(ev.CancelSend(peer, artifact, indices))
            case Interested(interested):
                remote.interested = interested
                self.interest(peer)
            case Choke(choked):
                remote.chokes_us = choked
                if choked:
                    self._give_up(remote)

    def seen(self, peer: PeerId, artifact: ArtifactId, indices: tuple[int, ...]) -> None:
        """A peer announced these."""

    def interest(self, peer: PeerId) -> None:
        """A peer wants something of us, or nothing any more."""

    def described(self, described: Description, source: PeerId | None) -> None:
        for peer in sorted(self.links - {source}):
            self.tell(peer, described)

    def more(self, artifact: ArtifactId, indices: list[int], now: float) -> None:
        frame = Have(artifact, tuple(indices), 0)
        for peer in sorted(self.links):
            self.tell(peer, frame)

    def received(self, peer: PeerId, artifact: ArtifactId, index: int, now: float) -> None:
        remote, piece = self.remotes[peer], (artifact, index)
        remote.received += 1
        if remote.asked.pop(piece, None) is not None:
            self._copies[piece] -= 1
        if self._copies[piece] > 0:
            for other, one in self.remotes.items():
                if one.asked.pop(piece, None) is not None:
                    self._copies[piece] -= 1
                    self.tell(other, Cancel(artifact, (index,)))

    def tick(self, now: float) -> None:
        for remote in self.remotes.values():
            if remote.asked and next(iter(remote.asked.values())) + self.timeout <= now:
                self._give_up(remote)
                remote.snubbed_until = now + self.timeout
        self._tick_at = now + TICK_SECONDS

    def schedule(self, now: float) -> None:
        self._tick_at = min(self._tick_at, now + TICK_SECONDS)
        if self.is_origin:
            return
        for artifact, shared in self.shared.items():
            if not shared.completed and shared.missing:
                self._ask_for(artifact, shared, now)

    def _ask_for(self, artifact: ArtifactId, shared: Shared, now: float) -> None:
        asked = {index for held, index in (+self._copies) if held == artifact}
        idle = shared.missing & ~sum(1 << index for index in asked)
        for peer in self.rng.sample(list(self.remotes), len(self.remotes)):
            remote, wanted = self.remotes[peer], []
            if remote.chokes_us or remote.snubbed_until > now or peer in self.bad:
                continue
            while len(remote.asked) < QUEUE:
                index = self._pick(artifact, shared, peer, idle)
                if index is None:
                    break
                idle &= ~(1 << index)
                remote.asked[artifact, index] = now
                self._copies[artifact, index] += 1
                wanted.append(index)
            if wanted:
                self.tell(peer, RequestSegments(artifact, 0, tuple(wanted)))

    def _pick(self, artifact: ArtifactId, shared: Shared, peer: PeerId, idle: int) -> int | None:
        held = shared.peers.counted(peer)
        if idle & held:
            return shared.peers.rarest(idle & held, self.rng) if shared.have else random_bit(idle & held, self.rng)
        if idle or not shared.ended:
            return None
        for index in bits(shared.missing & held):
            copies = self._copies[artifact, index]
            if copies < COPIES and (artifact, index) not in self.remotes[peer].asked:
                return index
        return None

    def _give_up(self, remote: Remote) -> None:
        for piece in remote.asked:
            self._copies[piece] -= 1
        remote.asked.clear()


class Torrent(Puller):
    """With choking."""

    timeout = TIMEOUT_SECONDS
    starts_choked = True

    def __init__(self, config: ExchangeConfig, me: PeerId, rng: Random) -> None:
        super().__init__(config, me, rng)
        self._choke_at = rng.uniform(0, CHOKE_SECONDS)
        self._optimistic_at = self._choke_at + OPTIMISTIC_SECONDS
        self._optimistic: PeerId | None = None

    def next_deadline(self) -> float:
        return min(super().next_deadline(), self._choke_at)

    def interest(self, peer: PeerId) -> None:
        remote = self.remotes[peer]
        if not remote.interested and not remote.choked:
            self._choke(peer, True)
        waiting = [peer for peer, one in self.remotes.items() if one.interested and one.choked]
        if waiting and sum(not one.choked for one in self.remotes.values()) < SLOTS:
            self._choke(peer if peer in waiting else self.rng.choice(waiting), False)

    def finished(self, artifact: ArtifactId) -> None:
        for peer, remote in self.remotes.items():
            if remote.told_interest:
                remote.told_interest = False
                self.tell(peer, Interested(False))

    def tick(self, now: float) -> None:
        super().tick(now)
        if now < self._choke_at:
            return
        self._choke_at = now + CHOKE_SECONDS
        able = [peer for peer, remote in self.remotes.items() if remote.interested]
        self.rng.shuffle(able)
        if (now >= self._optimistic_at or self._optimistic not in able) and able:
            self._optimistic_at = now + OPTIMISTIC_SECONDS
            self._optimistic = able[0]
        seeding = self.is_origin or all(shared.completed for shared in self.shared.values())
        able.sort(key=lambda peer: -(self.remotes[peer].sent if seeding else self.remotes[peer].received))
        chosen = {*[peer for peer in able if peer != self._optimistic][: SLOTS - 1], self._optimistic}
        for peer, remote in self.remotes.items():
            remote.received = remote.sent = 0
            if remote.choked == (peer in chosen):
                self._choke(peer, peer not in chosen)

    def _choke(self, peer: PeerId, choked: bool) -> None:
        self.remotes[peer].choked = choked
        self.tell(peer, Choke(choked))
        if choked:
            for artifact in self.shared:
                self.emit(ev.CancelSend(peer, artifact, tuple(range(len(self.shared[artifact].hashes)))))


class SuperSeed(Puller):
    """An origin that gives each piece once; as a node, a Puller."""

    def __init__(self, config: ExchangeConfig, me: PeerId, rng: Random) -> None:
        super().__init__(config, me, rng)
        self._todo: list[Piece] = []
        self._given: dict[PeerId, dict[Piece, float]] = {}
        self._leaving: set[tuple[PeerId, Piece]] = set()
        self._open = False

    def parted(self, peer: PeerId) -> None:
        super().parted(peer)
        self._todo = [*self._given.pop(peer, {}), *self._todo]
        self._leaving = {one for one in self._leaving if one[0] != peer}

    def announced(self, artifact: ArtifactId) -> int:
        return 0 if self.is_origin and not self._open else super().announced(artifact)

    def more(self, artifact: ArtifactId, indices: list[int], now: float) -> None:
        if not self.is_origin:
            super().more(artifact, indices, now)
            return
        self._open = False
        self._todo += [(artifact, index) for index in indices]

    def seen(self, peer: PeerId, artifact: ArtifactId, indices: tuple[int, ...]) -> None:
        for index in indices if self.is_origin else ():
            for holder, given in self._given.items():
                if holder != peer:
                    given.pop((artifact, index), None)

    def left(self, peer: PeerId, artifact: ArtifactId, index: int, now: float) -> None:
        self._leaving.discard((peer, (artifact, index)))

    def tick(self, now: float) -> None:
        super().tick(now)
        for given in self._given.values():
            for piece in [piece for piece, at in given.items() if at + self.timeout <= now]:
                del given[piece]
                self._todo.append(piece)

    def schedule(self, now: float) -> None:
        super().schedule(now)
        if not self.is_origin:
            return
        while self._todo and len(self._leaving) < GIVEN:
            able = [peer for peer in self.links if len(self._given.get(peer, ())) < PUSHED]
            if not able:
                return
            peer = min(sorted(able), key=lambda peer: (len(self._given.get(peer, ())), self.remotes[peer].sent))
            piece = self._todo.pop(0)
            self.remotes[peer].sent += 1
            self._given.setdefault(peer, {})[piece] = now
            self._leaving.add((peer, piece))
            self.give(peer, *piece)
        if not self._todo and not self._open and self.shared and all(shared.ended for shared in self.shared.values()):
            self._open = True
            for artifact, shared in self.shared.items():
                super().more(artifact, list(bits(shared.have)), now)
