"""What every rival of benchmarks.swarm_sim needs: links, what there is of an artifact, what we have of it.

A rival's machine has the three methods of ours and the same events and effects. It pays for its frames, but neither for
signatures nor for pages: it trusts every description, and a piece is checked by its hash as ours is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Any

from msgspec import Meta

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.bitset import mask_of
from aurora_p2p.swarm.exchange import ExchangeConfig
from aurora_p2p.swarm.picker import Availability
from aurora_p2p.types import ArtifactId, PeerId, Record
from aurora_p2p.wire.exchange import SegmentData
from aurora_p2p.wire.limits import ArtifactField
from aurora_p2p.wire.signed import Signed

MAX_PIECES = 1024
_NO_PAGE = Signed(PeerId(""), b"", b"")
NEVER = float("inf")


class Description(Record, frozen=True, tag="description"):
    """Pieces from `first` on: their hashes. `last_bytes` is the length of the last; `end`: there are no more."""

    artifact: ArtifactField
    piece_bytes: int
    first: int
    hashes: Annotated[bytes, Meta(max_length=32 * MAX_PIECES)]
    last_bytes: int
    end: bool


@dataclass(slots=True)
class Shared:
    """One artifact: what is known and held of it, and who else holds what."""

    piece_bytes: int
    descriptions: list[Description] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    last_bytes: int = 0
    ended: bool = False
    have: int = 0
    verifying: int = 0
    completed: bool = False
    peers: Availability = field(default_factory=lambda: Availability(MAX_PIECES))

    @property
    def known(self) -> int:
        return (1 << len(self.hashes)) - 1

    @property
    def missing(self) -> int:
        return self.known & ~(self.have | self.verifying)

    def length_of(self, index: int) -> int:
        last = self.ended and index == len(self.hashes) - 1
        return self.last_bytes if last else self.piece_bytes

    def learn(self, described: Description) -> bool:
        """Whether that was news. Descriptions come in order."""
        fresh = described.first == len(self.hashes) and not self.ended and (described.hashes or described.end)
        if fresh:
            self.descriptions.append(described)
            self.hashes += [described.hashes[i : i + 32] for i in range(0, len(described.hashes), 32)]
            self.last_bytes = described.last_bytes
            self.ended = described.end
        return bool(fresh)


class Sharer:
    """Base of the rivals: subclasses decide what is sent, announced and asked."""

    def __init__(self, config: ExchangeConfig, me: PeerId, rng: Random) -> None:
        self.me, self.rng = me, rng
        self.links: set[PeerId] = set()
        self.bad: set[PeerId] = set()
        self.shared: dict[ArtifactId, Shared] = {}
        self.hosts: frozenset[PeerId] = frozenset()
        self.is_origin = False
        self._effects: list[ev.Effect] = []
        self._manifests: dict[ArtifactId, Manifest] = {}

    # -- the machine

    def handle(self, event: ev.Event, *, now: float) -> list[ev.Effect]:
        match event:
            case ev.LinkUp(peer):
                self.links.add(peer)
                self.greet(peer)
            case ev.LinkDown(peer):
                self.links.discard(peer)
                for shared in self.shared.values():
                    shared.peers.drop(peer)
                self.parted(peer)
            case ev.TrustChanged(_, hosts):
                self.hosts, self.is_origin = hosts, self.me in hosts
            case ev.FrameIn(peer, frame):
                self.frame(peer, frame, now)
            case ev.SegmentIn():
                self._arrived(event, now)
            case ev.SegmentOut(peer, artifact, index):
                self.left(peer, artifact, index, now)
            case ev.Stored(artifact, index):
                shared = self.shared[artifact]
                shared.verifying &= ~(1 << index)
                self._more(artifact, [index], now)
            case ev.Publish() | ev.Produced() | ev.Finished():
                self._from_encoder(event, now)
        return self._settle(now)

    def expire(self, *, now: float) -> list[ev.Effect]:
        self.tick(now)
        return self._settle(now)

    def next_deadline(self) -> float:
        return NEVER

    # -- what subclasses decide

    def greet(self, peer: PeerId) -> None:
        """A link is open."""

    def parted(self, peer: PeerId) -> None:
        """A link is gone."""

    def frame(self, peer: PeerId, frame: Any, now: float) -> None:
        """Something other than a piece arrived."""

    def described(self, described: Description, source: PeerId | None) -> None:
        """News about an artifact, from the encoder (no source) or a peer."""

    def more(self, artifact: ArtifactId, indices: list[int], now: float) -> None:
        """We hold these now."""

    def received(self, peer: PeerId, artifact: ArtifactId, index: int, now: float) -> None:
        """A piece arrived, good or not."""

    def rejected(self, peer: PeerId) -> None:
        """What this peer sent failed its hash."""

    def left(self, peer: PeerId, artifact: ArtifactId, index: int, now: float) -> None:
        """A piece has left."""

    def finished(self, artifact: ArtifactId) -> None:
        """We have all of it."""

    def tick(self, now: float) -> None:
        """Time has passed."""

    def schedule(self, now: float) -> None:
        """After every event."""

    # -- tools

    def emit(self, effect: ev.Effect) -> None:
        self._effects.append(effect)

    def tell(self, peer: PeerId, frame: Any) -> None:
        self._effects.append(ev.SendFrame(peer, frame))

    def give(self, peer: PeerId, artifact: ArtifactId, index: int) -> None:
        length = self.shared[artifact].length_of(index)
        self.emit(ev.SendSegment(peer, SegmentData(artifact, index, "", b""), artifact, index, b"", length))

    def learn(self, described: Description, source: PeerId | None) -> None:
        shared = self.shared.setdefault(described.artifact, Shared(described.piece_bytes))
        if shared.learn(described):
            self.described(described, source)
            self._complete(described.artifact)

    # -- inside

    def _settle(self, now: float) -> list[ev.Effect]:
        self.schedule(now)
        effects, self._effects = self._effects, []
        return effects

    def _from_encoder(self, event: ev.Publish | ev.Produced | ev.Finished, now: float) -> None:
        match event:
            case ev.Publish(manifest):
                self._manifests[manifest.artifact] = manifest
                self.shared[manifest.artifact] = Shared(manifest.header.segment_bytes)
            case ev.Produced(artifact, indices, last_bytes):
                shared, held = self.shared[artifact], list(indices)
                hashes = b"".join(self._manifests[artifact].expected(index) or b"" for index in held)
                size = shared.piece_bytes
                self.learn(Description(artifact, size, len(shared.hashes), hashes, last_bytes or size, False), None)
                self._more(artifact, held, now)
            case ev.Finished(artifact):
                shared = self.shared[artifact]
                end = Description(artifact, shared.piece_bytes, len(shared.hashes), b"", shared.last_bytes, True)
                self.learn(end, None)

    def _more(self, artifact: ArtifactId, indices: list[int], now: float) -> None:
        self.shared[artifact].have |= mask_of(indices)
        self.more(artifact, indices, now)
        self._complete(artifact)

    def _complete(self, artifact: ArtifactId) -> None:
        shared = self.shared[artifact]
        if shared.ended and not shared.completed and shared.have == shared.known and not self.is_origin:
            shared.completed = True
            self.emit(ev.Completed(artifact))
            self.finished(artifact)

    def _arrived(self, event: ev.SegmentIn, now: float) -> None:
        artifact, index = event.frame.artifact, event.frame.index
        shared = self.shared.get(artifact)
        self.received(event.peer, artifact, index, now)
        if shared is None or not shared.missing >> index & 1:
            self.emit(ev.Discard(event.token))
        elif shared.hashes[index] != event.digest:
            self.bad.add(event.peer)
            shared.peers.suspend(event.peer)
            self.rejected(event.peer)
            self.emit(ev.Discard(event.token))
        else:
            shared.verifying |= 1 << index
            self.emit(ev.Keep(artifact, index, event.token, _NO_PAGE))


class Forwarder(Sharer):
    """Sends whatever it gets to everybody in `towards`, to all at once, as soon as it has it."""

    def __init__(self, config: ExchangeConfig, me: PeerId, rng: Random) -> None:
        super().__init__(config, me, rng)
        self.towards: set[PeerId] = set()

    def frame(self, peer: PeerId, frame: Any, now: float) -> None:
        if isinstance(frame, Description):
            self.learn(frame, peer)

    def described(self, described: Description, source: PeerId | None) -> None:
        for peer in sorted(self.towards & self.links):
            self.tell(peer, described)

    def more(self, artifact: ArtifactId, indices: list[int], now: float) -> None:
        for index in indices:
            for peer in sorted(self.towards & self.links):
                self.give(peer, artifact, index)
