"""Keys, headers and manifests for the tests of the swarm machines. Everything is derived from fixed seeds."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from blake3 import blake3
from msgspec import structs

from aurora_p2p.artifact.manifest import Manifest, PageWriter
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.exchange import Exchange, ExchangeConfig
from aurora_p2p.swarm.roster import Peer, RosterView
from aurora_p2p.types import NO_BASE, ArtifactId, Epoch, Generation, PeerId, RunId, Seq, StateDigest, SwarmId, Version
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.exchange import Have, Offer, SegmentData
from aurora_p2p.wire.manifest import Header
from aurora_p2p.wire.signed import Signed, seal
from aurora_p2p.wire.trust import Charter, Delegation, PeerRecord

SEGMENT = 256


def identity(name: str) -> Identity:
    return Identity(blake3(name.encode()).digest())


ROOT, PUBLISH, ADMIT, LEASE = (identity(name) for name in ("root", "publish", "admit", "lease"))
SWARM = SwarmId(str(ROOT.peer))
ME = identity("me").peer
HOST = identity("host").peer
A, B, C = (identity(name).peer for name in "abc")


def charter(generation: int = 1, *, publish: Identity = PUBLISH) -> Charter:
    delegation = Delegation(SWARM, Generation(generation), publish.peer, ADMIT.peer, LEASE.peer, (HOST,))
    return Charter(seal(ROOT, delegation))


def header(*, seq: int = 1, segments: int = 8, nonce: bytes = bytes(16), swarm: SwarmId = SWARM) -> Header:
    return Header(
        format=1,
        swarm=swarm,
        run=RunId(bytes(16)),
        version=Version(seq),
        seq=Seq(seq),
        nonce=nonce,
        kind="snapshot",
        base_version=NO_BASE,
        base_manifest=b"",
        base_digest=b"",
        layout=bytes(32),
        segment_bytes=SEGMENT,
        size_bound=segments * SEGMENT,
        class_map=b"",
        tensors=(),
        model=None,
    )


@dataclass(frozen=True)
class Published:
    """An artifact as its publisher knows it: pages of four segments each."""

    header: Signed
    pages: list[Signed]
    final: Signed
    segments: list[bytes]
    artifact: ArtifactId

    @classmethod
    def make(
        cls,
        *,
        seq: int = 1,
        segments: int = 8,
        nonce: bytes = bytes(16),
        publish: Identity = PUBLISH,
        version: int | None = None,
    ) -> Published:
        """version: where it leads; that of its seq unless it is given."""
        head = header(seq=seq, segments=max(segments, 1), nonce=nonce)
        signed = seal(publish, structs.replace(head, version=Version(seq if version is None else version)))
        body = Random(seq).randbytes(segments * SEGMENT)
        parts = [body[i : i + SEGMENT] for i in range(0, len(body), SEGMENT)]
        writer, pages = PageWriter(publish, signed), []
        for index, part in enumerate(parts):
            writer.add(blake3(part).digest())
            if index % 4 == 3 or index == len(parts) - 1:
                pages += writer.flush()
        final = writer.finish(len(body), StateDigest(bytes(32)))
        return cls(signed, pages, final, parts, writer.artifact)

    def manifest(self, *, complete: bool = True) -> Manifest:
        manifest = Manifest(self.header, self.header.signer)
        if complete:
            for page in self.pages:
                manifest.add_page(page)
            manifest.add_final(self.final)
        return manifest

    def segment_in(
        self, peer: PeerId, index: int, *, push: bool = False, page: bool = True, good: bool = True
    ) -> ev.SegmentIn:
        payload = self.segments[index] if good else bytes(SEGMENT)
        encoded = encode(self.pages[index // 4]) if page else b""
        frame = SegmentData(self.artifact, index, "first" if push else "", encoded)
        return ev.SegmentIn(peer, frame, f"{peer}/{index}", len(payload), blake3(payload).digest())


TRUST = ev.TrustChanged(PUBLISH.peer, frozenset({HOST}), 1)


class Bench:
    """One machine under test, with its clock."""

    def __init__(self, *peers: PeerId) -> None:
        self.machine = Exchange(ExchangeConfig(SWARM, up_kbps=8000), ME, Random(1))
        self.now = 100.0
        self.do(TRUST)
        for peer in peers:
            self.do(ev.LinkUp(peer))

    def do(self, event: ev.Event) -> list[ev.Effect]:
        return self.machine.handle(event, now=self.now)

    def pass_time(self, seconds: float) -> list[ev.Effect]:
        """Wake the machine at each of its deadlines until `seconds` have passed."""
        end, effects, still = self.now + seconds, [], 0
        while (due := self.machine.next_deadline()) <= end:
            still = still + 1 if due <= self.now else 0
            assert still < 8, "a deadline does not move"
            self.now = max(due, self.now)
            effects += self.machine.expire(now=self.now)
        self.now = end
        return effects

    def fetch(self, published: Published, *offered_by: PeerId, final: bool = True) -> list[ev.Effect]:
        for peer in offered_by:
            self.do(ev.FrameIn(peer, Offer(published.header, published.final if final else None)))
        return self.do(ev.Accept(published.artifact))

    def have(self, published: Published, peer: PeerId, *indices: int) -> list[ev.Effect]:
        return self.do(ev.FrameIn(peer, Have(published.artifact, indices, 0)))


def roster(
    regions: dict[PeerId, int],
    *,
    epoch: int = 1,
    probation: tuple[PeerId, ...] = (),
    up_kbps: dict[PeerId, int] | None = None,
) -> RosterView:
    """A verified view of these members, each with an address that others can dial."""
    peers = {
        peer: Peer(
            PeerRecord(SWARM, peer, 1, (), ("198.18.0.1:1",), (up_kbps or {}).get(peer, 0)), region, peer in probation
        )
        for peer, region in regions.items()
    }
    return RosterView(charter().delegation, Generation(1), Epoch(epoch), peers)
