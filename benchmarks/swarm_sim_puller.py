"""What BitTorrent and super-seeding share in benchmarks.swarm_sim: pieces are announced, asked for and served.

The first piece is drawn at random, then rarest first; QUEUE requests are outstanding at a peer. What is not answered
for `timeout` is asked of others. End game: what is asked for already is asked of a second peer. Announcements of
BATCH_SECONDS are one frame, as ours are, and go to whoever lacks the piece, and to the origin.

A piece is a segment of 256 KiB and comes whole from one peer; clients cut it into blocks of 16 KiB.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.bitset import bits, mask_of, random_bit
from aurora_p2p.swarm.exchange import ExchangeConfig
from aurora_p2p.types import ArtifactId, PeerId, Record
from aurora_p2p.wire.exchange import Cancel, Have, RequestSegments
from benchmarks.swarm_sim_sharer import NEVER, Description, Shared, Sharer

QUEUE = 4
"""Pieces outstanding at one peer: 64 blocks of 16 KiB."""
TIMEOUT_SECONDS = 4.0
TICK_SECONDS = 0.5
BATCH_SECONDS = 0.01


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


@dataclass(slots=True)
class Asked:
    """The pieces of an artifact that are outstanding at one peer at least, and at two: at more never."""

    once: int = 0
    twice: int = 0

    def add(self, index: int) -> None:
        self.twice |= self.once & 1 << index
        self.once |= 1 << index

    def remove(self, index: int) -> None:
        if self.twice >> index & 1:
            self.twice ^= 1 << index
        else:
            self.once &= ~(1 << index)


class Puller(Sharer):
    """Announces what it has, asks for what is rare, serves whom it does not choke."""

    timeout = TIMEOUT_SECONDS
    starts_choked = False

    def __init__(self, config: ExchangeConfig, me: PeerId, rng: Random) -> None:
        super().__init__(config, me, rng)
        self.remotes: dict[PeerId, Remote] = {}
        self._asked: dict[ArtifactId, Asked] = {}
        self._news: dict[ArtifactId, int] = {}
        self._stale: dict[PeerId, None] = {}
        """Peers of whom more might be asked than when they were looked at last."""
        self._tick_at = self._tell_at = NEVER

    def next_deadline(self) -> float:
        return min(self._tick_at, self._tell_at)

    # -- what peers say

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
                self._holds(peer, artifact, indices)
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
                self._stale[peer] = None
                if choked:
                    self._give_up(remote)

    def _holds(self, peer: PeerId, artifact: ArtifactId, indices: tuple[int, ...]) -> None:
        remote, shared = self.remotes[peer], self.shared[artifact]
        new = shared.peers.add(peer, mask_of(indices))
        if new & shared.missing:
            self._stale[peer] = None
        self.seen(peer, artifact, indices)
        if not remote.told_interest and not shared.completed and not self.is_origin:
            remote.told_interest = True
            self.tell(peer, Interested(True))

    def seen(self, peer: PeerId, artifact: ArtifactId, indices: tuple[int, ...]) -> None:
        """A peer announced these."""

    def interest(self, peer: PeerId) -> None:
        """A peer wants something of us, or nothing any more."""

    def described(self, described: Description, source: PeerId | None) -> None:
        self._asked.setdefault(described.artifact, Asked())
        self._look_at_all()
        for peer in sorted(self.links - {source}):
            self.tell(peer, described)

    def received(self, peer: PeerId, artifact: ArtifactId, index: int, now: float) -> None:
        remote, piece, asked = self.remotes[peer], (artifact, index), self._asked[artifact]
        remote.received += 1
        self._stale[peer] = None
        if remote.asked.pop(piece, None) is not None:
            asked.remove(index)
        if asked.once >> index & 1:
            for other, one in self.remotes.items():
                if one.asked.pop(piece, None) is not None:
                    asked.remove(index)
                    self._stale[other] = None
                    self.tell(other, Cancel(artifact, (index,)))

    def rejected(self, peer: PeerId) -> None:
        self._look_at_all()

    # -- what we say

    def more(self, artifact: ArtifactId, indices: list[int], now: float) -> None:
        self._news[artifact] = self._news.get(artifact, 0) | mask_of(indices)
        self._tell_at = min(self._tell_at, now + BATCH_SECONDS)

    def tick(self, now: float) -> None:
        if self._tell_at <= now:
            self._announce()
        if self._tick_at > now:
            return
        self._tick_at = now + TICK_SECONDS
        self._look_at_all()
        for remote in self.remotes.values():
            if remote.asked and next(iter(remote.asked.values())) + self.timeout <= now:
                self._give_up(remote)
                remote.snubbed_until = now + self.timeout

    def _announce(self) -> None:
        self._tell_at = NEVER
        news, self._news = self._news, {}
        for artifact, mask in news.items():
            held = self.shared[artifact].peers.held
            for peer in sorted(self.links):
                indices = tuple(bits(mask & ~(0 if peer in self.hosts else held.get(peer, 0))))
                if indices:
                    self.tell(peer, Have(artifact, indices, 0))

    # -- what is asked of whom

    def schedule(self, now: float) -> None:
        self._tick_at = min(self._tick_at, now + TICK_SECONDS)
        while self._stale and not self.is_origin:
            peers = [peer for peer in self._stale if peer in self.remotes]
            self._stale.clear()
            self.rng.shuffle(peers)
            for artifact, shared in self.shared.items():
                if not shared.completed and shared.missing:
                    self._ask_for(artifact, shared, peers, now)

    def _ask_for(self, artifact: ArtifactId, shared: Shared, peers: list[PeerId], now: float) -> None:
        asked = self._asked[artifact]
        idle = shared.missing & ~asked.once
        for peer in peers:
            remote, wanted = self.remotes[peer], []
            if remote.chokes_us or remote.snubbed_until > now or peer in self.bad:
                continue
            while len(remote.asked) < QUEUE:
                index = self._pick(artifact, shared, peer)
                if index is None:
                    break
                asked.add(index)
                remote.asked[artifact, index] = now
                wanted.append(index)
            if wanted:
                self.tell(peer, RequestSegments(artifact, 0, tuple(wanted)))
        if idle and shared.ended and not shared.missing & ~asked.once:  # the end game begins
            self._look_at_all()

    def _pick(self, artifact: ArtifactId, shared: Shared, peer: PeerId) -> int | None:
        asked, held = self._asked[artifact], shared.peers.counted(peer)
        idle = shared.missing & ~asked.once
        if idle & held:
            return shared.peers.rarest(idle & held, self.rng) if shared.have else random_bit(idle & held, self.rng)
        if idle or not shared.ended:
            return None
        here = mask_of(index for of, index in self.remotes[peer].asked if of == artifact)
        return next(bits(shared.missing & held & ~asked.twice & ~here), None)

    def _give_up(self, remote: Remote) -> None:
        for artifact, index in remote.asked:
            self._asked[artifact].remove(index)
        remote.asked.clear()
        self._look_at_all()

    def _look_at_all(self) -> None:
        self._stale = dict.fromkeys(self.remotes)
