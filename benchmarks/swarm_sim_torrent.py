"""Models of BitTorrent, and of super-seeding with plain pulls, for benchmarks.swarm_sim. See swarm_sim_puller.py too.

bittorrent  Links are drawn at random from the whole swarm; every piece is announced to everybody at once. A peer
            uploads to SLOTS interested ones: slots are given while they are free, and given anew every
            CHOKE_SECONDS to those that sent most (who needs nothing: to those that took most), one of them by
            chance, and kept for OPTIMISTIC_SECONDS.
superseed   The same without choking, over the links of our own policy. The origin gives each piece once, to peers
            in turn, PUSHED at a time to a peer until it sees one of them elsewhere, and again after `timeout`; when
            all are given it announces and serves like others. Nodes pull from whoever has a piece, in any region.
"""

from __future__ import annotations

from random import Random

from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.bitset import bits
from aurora_p2p.swarm.exchange import ExchangeConfig
from aurora_p2p.types import ArtifactId, PeerId
from benchmarks.swarm_sim_puller import Choke, Interested, Piece, Puller

SLOTS = 4
CHOKE_SECONDS = 10.0
OPTIMISTIC_SECONDS = 30.0
TORRENT_TIMEOUT_SECONDS = 20.0
PUSHED = 2
GIVEN = 32
"""Pieces that a super-seed has on its uplink at a time: with fewer, connections that start slowly leave it idle."""


class Torrent(Puller):
    """With choking."""

    timeout = TORRENT_TIMEOUT_SECONDS
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
