"""Static plans to compare the swarm with: direct fan-out, one relay per region, a cut-through chain.

    StaticPlan   takes the place of the exchange machine (swarm/exchange.py) in the same driver, on the same frames,
                 sockets and store: every segment goes down a tree that is fixed before the run

A node forwards a segment as soon as it is stored, to each of its children, at most UPLOADS at a time. Nothing repairs
the tree: if a process in it dies, everything below it stays where it was. That is what relays and chains do.

The plans are the best of their kind: chains go from the fastest node to the slowest, one region after the other, so
that each line between regions is crossed once; a relay is the fastest node of its region.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.bitset import bits
from aurora_p2p.testing.netlab import Access
from aurora_p2p.types import ArtifactId, PeerId
from aurora_p2p.wire import exchange as frames
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.signed import Signed

UPLOADS = 4
"""Segments with the data plane at a time, as in swarm/uplink.py."""
UPLOADS_PER_CHILD = 2
READY = 1
"""Segments of the Credit by which a child says that it has room on disk and can be sent to."""
PLANS = ("direct", "relay", "chain")


def children_of(plan: str, lines: Sequence[Access]) -> dict[int, list[int]]:
    """The tree of a plan: node -> whom it sends to. Node 0 is the origin. Raises KeyError for an unknown plan."""
    nodes = sorted(range(1, len(lines)), key=lambda node: (lines[node].region, -lines[node].up, node))
    match plan:
        case "direct":
            return {0: nodes}
        case "chain":
            return {parent: [child] for parent, child in zip([0, *nodes], nodes, strict=False)}
        case "relay":
            regions = sorted({lines[node].region for node in nodes})
            members = [[node for node in nodes if lines[node].region == region] for region in regions]
            return {0: [group[0] for group in members]} | {group[0]: group[1:] for group in members}
    raise KeyError(plan)


@dataclass(slots=True)
class _Passage:
    manifest: Manifest
    have: int = 0
    short: dict[int, int] = field(default_factory=dict)
    waiting: dict[PeerId, deque[int]] = field(default_factory=dict)
    """Child -> segments to send it, once it is ready."""
    paged: set[tuple[PeerId, int]] = field(default_factory=set)
    complete: bool = False


class StaticPlan:
    """The machine of one node: the interface of Exchange, none of its decisions."""

    def __init__(self, children: Sequence[PeerId]) -> None:
        self._children = tuple(children)
        self._publisher = PeerId("")
        self._links: set[PeerId] = set()
        self._passages: dict[ArtifactId, _Passage] = {}
        self._sending: dict[tuple[PeerId, ArtifactId, int], None] = {}
        self._effects: list[ev.Effect] = []

    def handle(self, event: ev.Event, *, now: float) -> list[ev.Effect]:
        """Like Exchange.handle."""
        match event:
            case ev.TrustChanged(publisher):
                self._publisher = publisher
            case ev.LinkUp(peer):
                self._links.add(peer)
            case ev.LinkDown(peer):
                self._links.discard(peer)
                self._sending = {key: None for key in self._sending if key[0] != peer}
            case ev.FrameIn(peer, frame):
                self._frame(peer, frame)
            case ev.SegmentIn():
                self._segment(event)
            case ev.SegmentOut(peer, artifact, index):
                self._sending.pop((peer, artifact, index), None)
            case ev.Publish(manifest):
                self._begin(manifest)
            case _:
                self._progress(event)
        self._pump()
        effects, self._effects = self._effects, []
        return effects

    def expire(self, *, now: float) -> list[ev.Effect]:
        return []

    def next_deadline(self) -> float:
        return float("inf")

    def have(self, artifact: ArtifactId) -> int:
        passage = self._passages.get(artifact)
        return passage.have if passage else 0

    def standings(self) -> Mapping[PeerId, object]:
        return {}

    def _begin(self, manifest: Manifest) -> _Passage:
        self._tell(frames.Offer(manifest.signed_header, None))
        return self._passages.setdefault(manifest.artifact, _Passage(manifest))

    def _progress(self, event: ev.Event) -> None:
        if isinstance(event, ev.Retire):
            self._passages.pop(event.artifact, None)
        if not isinstance(event, ev.Accept | ev.Produced | ev.Finished | ev.Stored):
            return
        passage = self._passages[event.artifact]
        match event:
            case ev.Accept(artifact):
                self._effects += [ev.SendFrame(peer, frames.Credit(artifact, READY)) for peer in sorted(self._links)]
            case ev.Produced(_, indices, last_bytes):
                new = list(indices)
                if last_bytes is not None:
                    passage.short[max(new)] = last_bytes
                self._held(passage, new)
            case ev.Stored(_, index):
                self._held(passage, [index])
                self._complete(passage)
            case ev.Finished() if passage.manifest.signed_final is not None:
                self._tell(frames.Offer(passage.manifest.signed_header, passage.manifest.signed_final))

    def _frame(self, peer: PeerId, frame: frames.ExchangeFrame) -> None:
        match frame:
            case frames.Offer(header, None):
                manifest = Manifest(header, self._publisher)
                self._begin(manifest)
                self._effects.append(ev.Announced(manifest))
            case frames.Offer(header, final) if final is not None:
                passage = self._passages[Manifest(header, self._publisher).artifact]
                passage.manifest.add_final(final)
                self._tell(frame)
                self._complete(passage)
            case frames.Credit(artifact) if peer in self._children:
                passage = self._passages[artifact]
                passage.waiting[peer] = deque(bits(passage.have))

    def _segment(self, event: ev.SegmentIn) -> None:
        artifact, index = event.frame.artifact, event.frame.index
        passage = self._passages[artifact]
        if event.frame.page:
            passage.manifest.add_page(decode(event.frame.page, Signed))
        page = passage.manifest.page_of(index)
        if page is None or passage.manifest.expected(index) != event.digest:
            self._effects += [ev.Discard(event.token), ev.Refused(event.peer, "a segment that does not verify")]
        else:
            self._effects.append(ev.Keep(artifact, index, event.token, page))

    def _held(self, passage: _Passage, indices: Sequence[int]) -> None:
        for index in indices:
            passage.have |= 1 << index
            for queue in passage.waiting.values():
                queue.append(index)

    def _complete(self, passage: _Passage) -> None:
        final = passage.manifest.final
        if final is not None and not passage.complete and passage.have.bit_count() == final.segments:
            passage.complete = True
            self._effects.append(ev.Completed(passage.manifest.artifact))

    def _tell(self, frame: frames.Offer) -> None:
        self._effects += [ev.SendFrame(child, frame) for child in self._children]

    def _pump(self) -> None:
        while len(self._sending) < UPLOADS:
            busy = {child: sum(peer == child for peer, _, _ in self._sending) for child in self._children}
            ready = [
                (-len(passage.waiting[child]), busy[child], child, passage)
                for passage in self._passages.values()
                for child in passage.waiting
                if passage.waiting[child] and child in self._links and busy[child] < UPLOADS_PER_CHILD
            ]
            if not ready:
                return
            _, _, child, passage = min(ready, key=lambda choice: choice[:3])
            self._send(child, passage, passage.waiting[child].popleft())

    def _send(self, child: PeerId, passage: _Passage, index: int) -> None:
        manifest = passage.manifest
        page, first, expected = manifest.page_of(index), manifest.page_key(index), manifest.expected(index)
        if page is None or first is None or expected is None:
            raise LookupError(f"segment {index} has no page")
        known = (child, first) in passage.paged
        passage.paged.add((child, first))
        frame = frames.SegmentData(manifest.artifact, index, "first", b"" if known else encode(page))
        length = manifest.length_of(index) or passage.short.get(index, manifest.header.segment_bytes)
        self._sending[child, manifest.artifact, index] = None
        self._effects.append(ev.SendSegment(child, frame, manifest.artifact, index, expected, length))
