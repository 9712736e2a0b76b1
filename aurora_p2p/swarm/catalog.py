"""Every artifact this machine knows of, and the rules by which a header becomes known.

A header is admitted if the publisher signed it for this swarm, it was not aborted, and no other artifact has its seq.
Old ones are welcome: a newcomer starts from a snapshot that HEAD has long passed. Two artifacts with one seq are an
equivocation: both are dropped, the proof is kept, and nothing more is admitted until a delegation of a higher
generation arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.errors import WireError
from aurora_p2p.swarm.crossing import Crossing
from aurora_p2p.swarm.events import TrustChanged
from aurora_p2p.swarm.forwarding import Forwarding
from aurora_p2p.swarm.geography import Geography
from aurora_p2p.swarm.origin import Seeder
from aurora_p2p.swarm.picker import Availability, Fetch
from aurora_p2p.swarm.refusals import Refusal
from aurora_p2p.types import ArtifactId, PeerId, Seq, SwarmId
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.manifest import Header
from aurora_p2p.wire.signed import Signed, open_signed
from aurora_p2p.wire.trust import Abort, Equivocation

MAX_KNOWN = 512
"""The store retains those of 10 minutes: a step takes seconds. Beyond, the oldest that we hold nothing of gives way."""
MAX_ABORTED = 256


@dataclass(slots=True)
class Holding:
    """One artifact: its manifest, what we have of it, who else has what. `seeder` where we are the origin."""

    manifest: Manifest
    peers: Availability
    fetch: Fetch
    seeder: Seeder | None = None
    crossing: Crossing = field(default_factory=Crossing)
    forwarding: Forwarding = field(default_factory=Forwarding)
    firsts: int = 0
    """Segments that came from a host: we are their first holder."""
    complete: bool = False
    short: dict[int, int] = field(default_factory=dict)
    """Length of segments shorter than segment_bytes (the last one)."""
    served: dict[int, int] = field(default_factory=dict)
    """How often we sent each segment on: first copies go before repeats."""

    @property
    def artifact(self) -> ArtifactId:
        return self.manifest.artifact

    @property
    def seq(self) -> Seq:
        return self.manifest.header.seq

    @property
    def servable(self) -> int:
        """What we announce. An origin announces only what others have: nodes shall ask each other first."""
        return self.fetch.have & self.seeder.confirmed if self.seeder else self.fetch.have

    def length_of(self, index: int) -> int:
        exact = self.manifest.length_of(index)
        return exact if exact is not None else self.short.get(index, self.manifest.header.segment_bytes)

    def page_of(self, index: int) -> tuple[int, Signed, bytes]:
        """(first segment of its page, the signed page, BLAKE3) of a segment that we hold or have verified."""
        first, page = self.manifest.page_key(index), self.manifest.page_of(index)
        expected = self.manifest.expected(index)
        if first is None or page is None or expected is None:
            raise LookupError(f"segment {index} has no page: it must not be held")
        return first, page, expected

    def take_page(self, index: int, page: bytes) -> Signed | None:
        """The signed page covering `index`, taken from the frame when it is new; None when there is none.

        Raises WireError or ContradictionError (artifact/manifest.py).
        """
        known = self.manifest.page_of(index) if index < self.manifest.max_segments else None
        if page and (known is None or encode(known) != page):
            self.manifest.add_page(decode(page, Signed))
        return known or self.manifest.page_of(index)


class Catalog:
    """Known artifacts by id."""

    def __init__(self, swarm: SwarmId, geography: Geography) -> None:
        self.geography = geography
        self.artifacts: dict[ArtifactId, Holding] = {}
        self.hosts: frozenset[PeerId] = frozenset()
        self._swarm = swarm
        self._publisher: PeerId | None = None
        self._generation = -1
        self._halted = False
        self._headers: dict[Seq, Signed] = {}
        self._aborted: dict[ArtifactId, Signed] = {}

    def trust(self, event: TrustChanged) -> None:
        if event.generation > self._generation:
            self._halted = False
            self._headers.clear()
        self._publisher, self.hosts = event.publisher, event.hosts
        self._generation = event.generation

    @property
    def newest(self) -> Seq:
        """Of what is live; 0 when nothing is."""
        return max((h.seq for h in self.artifacts.values() if not h.fetch.catch_up), default=Seq(0))

    def is_live(self, holding: Holding) -> bool:
        """Whether it is the first artifact that leads to the newest version of all that are known."""
        version, seq = holding.manifest.header.version, holding.seq
        headers = (other.manifest.header for other in self.artifacts.values())
        return not any((one.version, -one.seq) > (version, -seq) for one in headers)

    def open(self, signed: Signed) -> Manifest | Equivocation | tuple[Refusal, str]:
        """A new manifest for an unknown header, proof of an equivocation, or the reason for refusing it.

        The caller has seen that it was not aborted (`abort_of`).
        """
        if self._halted or self._publisher is None:
            return Refusal.NO_PUBLISHER, ""
        try:
            manifest = Manifest(signed, self._publisher)
        except WireError as error:
            return Refusal.BAD_HEADER, str(error)
        header = manifest.header
        if header.swarm != self._swarm:
            return Refusal.OTHER_SWARM, ""
        known = self._headers.get(header.seq)
        if known is not None and known.body != signed.body:
            return Equivocation(known, signed)
        return manifest

    def add(self, manifest: Manifest, *, origin: bool = False, catch_up: bool = False) -> Holding:
        """Make a manifest known. catch_up: it was complete when we heard of it.

        So is, for the order of service, whatever leads to a version that was out before: a squash, or a snapshot for
        late joiners, must not delay the next version.
        """
        header = manifest.header
        catch_up = catch_up or any(
            other.manifest.header.version >= header.version and other.seq < header.seq
            for other in self.artifacts.values()
        )
        # An origin asks nobody: to it a copy across an ocean is a copy, and what is held there is not to be sent again.
        peers = Availability(manifest.max_segments, *(() if origin else (self.geography.is_across,)))
        holding = Holding(manifest, peers, Fetch(peers, catch_up=catch_up))
        if origin:
            holding.seeder = Seeder(peers, manifest.header.segment_bytes)
        self.artifacts[manifest.artifact] = holding
        self._headers[manifest.header.seq] = manifest.signed_header
        if len(self._headers) > 2 * MAX_KNOWN:
            del self._headers[min(self._headers)]
        return holding

    @property
    def full(self) -> bool:
        return len(self.artifacts) >= MAX_KNOWN

    def least(self, below: Seq) -> ArtifactId | None:
        """The oldest artifact, older than `below`, that we hold nothing of and do not want."""
        idle = [h for h in self.artifacts.values() if not h.fetch.wanted and not h.fetch.have and not h.seeder]
        oldest = min(idle, key=lambda h: h.seq, default=None)
        return oldest.artifact if oldest is not None and oldest.seq < below else None

    def is_equivocation(self, evidence: Equivocation) -> bool:
        """Whether the publisher signed both headers, with one seq, for two artifacts of this swarm."""
        if self._publisher is None or evidence.first.body == evidence.second.body:
            return False
        try:
            first, second = (open_signed(s, Header, {self._publisher}) for s in (evidence.first, evidence.second))
        except WireError:
            return False
        return first.seq == second.seq and first.swarm == second.swarm == self._swarm

    def halt(self) -> None:
        """Admit nothing until a higher generation."""
        self._halted = True

    @property
    def halted(self) -> bool:
        return self._halted

    def abort(self, signed: Signed) -> ArtifactId | None:
        """The artifact that a valid and new Abort names; it will not be admitted again."""
        if self._publisher is None:
            return None
        try:
            abort = open_signed(signed, Abort, {self._publisher})
        except WireError:
            return None
        if abort.swarm != self._swarm or abort.artifact in self._aborted:
            return None
        if len(self._aborted) >= MAX_ABORTED:
            del self._aborted[next(iter(self._aborted))]
        self._aborted[abort.artifact] = signed
        return abort.artifact

    def abort_of(self, artifact: ArtifactId) -> Signed | None:
        """The Abort that ended this artifact."""
        return self._aborted.get(artifact)

    def take_final(self, holding: Holding, final: Signed | None) -> bool:
        """Take a final page; True when it is the first. Raises WireError or ContradictionError."""
        if final is None or (holding.manifest.signed_final is not None and holding.manifest.signed_final == final):
            return False
        known = holding.manifest.signed_final is not None
        holding.manifest.add_final(final)
        return not known
