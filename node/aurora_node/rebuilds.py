"""Making the host's newest snapshot out of what this node stores, so that newcomers get it from members.

    announced, complete at the host --our turn--> reserved --probes--> all pages --fold--> segments --> complete, seeded

Who does it and when is artifact/rebuilding.py's; the fold child is that of folds.py, and so are its budget of writing
and its place: one of both works at a time. Each segment is compared with its signed page before it is stored, is
served from then on, and in the end the artifact is one of the publisher's like any other: the restart set begins with
it, and what it replaces is let go of. It costs the publisher one segment for each page, and nothing else.

It gives way: to weights that find no room on the disk, and to a newer snapshot. Whatever goes wrong, the artifact is as
unknown to the store as before. Killed anywhere: what is not complete goes at the next start (following.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, aclosing
from typing import Any, Protocol

import trio

from aurora_node.folds import Folds
from aurora_node.known import Known
from aurora_p2p.artifact.folding import Folding, open_fold
from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.rebuilding import TURN_SECONDS, is_seeded, most_probes, probes, turn_of
from aurora_p2p.artifact.routes import Plan, snapshot_plan
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.errors import AuroraError, CheckpointError, StaleError, StoreError
from aurora_p2p.local.clock import boottime
from aurora_p2p.swarm import events as ev
from aurora_p2p.types import ArtifactId, PeerId
from aurora_p2p.wire.codec import hash_of

LOOK_SECONDS = 2.0
PROBE_LOOK_SECONDS = 0.2
"""Between two looks whether pages have come."""
PROBE_SECONDS = 600.0
"""For all pages: they yield to whatever is live."""
FINISH_SECONDS = 60.0
"""For the marker on the disk, which another thread writes; one that refuses is asked again every few seconds."""


class Exchange(Protocol):
    """What of the exchange's driver is needed."""

    async def feed(self, event: ev.Event) -> None: ...

    def holders(self, artifact: ArtifactId) -> Mapping[PeerId, int]: ...

    def reach_of(self, artifact: ArtifactId) -> tuple[int, int]: ...


class Rebuilds:
    """Run one `run`. newest: the newest snapshot heard of. members: who may take turns, this node among them.

    pressed: whether newer weights find no room on the disk.
    """

    def __init__(self, me: PeerId, store: ArtifactStore, exchange: Exchange, folds: Folds) -> None:
        self._me, self._store, self._exchange, self._folds = me, store, exchange, folds
        self._given_up: ArtifactId | None = None
        self.newest: Callable[[], Known | None] = lambda: None
        self.members: Callable[[], Collection[PeerId]] = tuple
        self.pressed: Callable[[], bool] = lambda: False
        self.note: Callable[..., None] = lambda name, **fields: None
        self.rebuilt = 0
        self.under_way: Manifest | None = None
        self.failed = ""
        """Why the last one was given up; "" once one was completed."""

    def status(self) -> dict[str, Any]:
        """Plain values."""
        working = None
        if self.under_way is not None:
            have, segments = self._exchange.reach_of(self.under_way.artifact)
            version = self.under_way.header.version
            working = {"version": version, "have": have.bit_count(), "segments": segments}
        return {"rebuilt": self.rebuilt, "rebuilding": working, "rebuild_failed": self.failed}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Rebuild the newest snapshot, if it is our turn. A failure is noted, and that snapshot left to others."""
        if self._due() is None:
            return
        async with self._folds.turn:
            manifest = self._due()  # a fold may have taken long
            plan = self._plan(manifest) if manifest is not None else None
            if manifest is None or plan is None:
                return
            try:
                await self._rebuild(manifest, plan)
            except AuroraError as error:
                self._given_up, self.failed = manifest.artifact, str(error)
                self.note("rebuild-failed", version=manifest.header.version, why=self.failed)

    def _due(self) -> Manifest | None:
        """What is ours to make now."""
        known, now = self.newest(), boottime()
        if known is None or known.begun or known.complete or not self._folds.may_write(now):
            return None
        manifest, members = known.manifest, self.members()
        final = manifest.final
        if final is None or manifest.artifact == self._given_up or self._me not in members or self.pressed():
            return None
        wait = TURN_SECONDS * turn_of(self._me, members, manifest.artifact)
        seeded = is_seeded(self._exchange.holders(manifest.artifact).values(), final.segments)
        return None if seeded or now < known.heard + wait else manifest

    def _plan(self, manifest: Manifest) -> Plan | None:
        """The stored artifacts that lead to its state; None when they are not all here (any more)."""
        if manifest.final is None:
            return None
        return snapshot_plan(self._store.residents(), manifest.header.version, manifest.final.digest)

    async def _rebuild(self, manifest: Manifest, plan: Plan) -> None:
        started, self.under_way = boottime(), manifest
        try:
            with ExitStack() as pinned:
                for artifact in plan.artifacts:
                    self._store.pin(artifact)
                    pinned.callback(self._store.unpin, artifact)
                await trio.to_thread.run_sync(self._reserve, manifest)
                await self._learn_pages(manifest)
                length = await self._make(manifest, plan)
            await self._wait_until_complete(manifest)
        finally:
            self.under_way = None
            if not self._store.is_complete(manifest.artifact):
                with trio.CancelScope(shield=True):
                    await self._give_up(manifest)
        self._folds.wrote(length)
        self.rebuilt, self.failed = self.rebuilt + 1, ""
        seconds = round(boottime() - started, 3)
        self.note("rebuilt", version=manifest.header.version, bytes=length, seconds=seconds)

    def _reserve(self, manifest: Manifest) -> None:
        """Raises StoreError, DiskFullError."""
        self._folds.require_room(manifest.header.size_bound)
        self._store.create(manifest.signed_header)

    async def _give_up(self, manifest: Manifest) -> None:
        """The store forgets it, and the exchange that we have any of it; it may be accepted later like any other."""
        artifact = manifest.artifact
        await self._exchange.feed(ev.Decline(artifact))
        await trio.to_thread.run_sync(self._store.retire, artifact)
        have, _ = self._exchange.reach_of(artifact)
        for index in range(have.bit_length()):
            if have >> index & 1:
                await self._exchange.feed(ev.StoreFailed(artifact, index))

    async def _learn_pages(self, manifest: Manifest) -> None:
        """Fetch one segment of each page. Raises StaleError when it takes too long, CheckpointError when it is dear."""
        asked: set[int] = set()
        most = most_probes(manifest.final.segments if manifest.final else 0)
        with trio.move_on_after(PROBE_SECONDS):
            while not manifest.pages_complete:
                self._require_use(manifest)
                more = probes(manifest) - asked
                asked |= more
                if len(asked) > most:
                    raise CheckpointError(f"its pages are small: more than {most} segments would have to be fetched")
                if more:
                    await self._exchange.feed(ev.Probe(manifest.artifact, tuple(asked)))
                await trio.sleep(PROBE_LOOK_SECONDS)
            return
        raise StaleError(f"its pages did not come within {PROBE_SECONDS:.0f} s")

    async def _make(self, manifest: Manifest, plan: Plan) -> int:
        """Fold, compare and store every segment; returns the bytes. Raises what folding raises, CheckpointError."""
        sources = [self._store.source(artifact) for artifact in plan.artifacts]
        await trio.to_thread.run_sync(self._save_pages, manifest)
        async with open_fold(sources, base=0, log=self._folds.log) as folding:
            if folding.begun.layout != manifest.header.layout:
                raise CheckpointError("what is stored has another tensor table than the snapshot")
            return await self._store_all(manifest, folding)

    async def _store_all(self, manifest: Manifest, folding: Folding) -> int:
        size, rest, first = manifest.header.segment_bytes, bytearray(), 0
        async with aclosing(folding.pieces()) as pieces:
            async for piece in pieces:
                self._require_use(manifest)
                rest += piece
                whole = len(rest) - len(rest) % size
                first += await self._store_some(manifest, first, bytes(rest[:whole]))
                del rest[:whole]
        length = first * size + len(rest)
        await self._store_some(manifest, first, bytes(rest))
        if manifest.final is None or length != manifest.final.length:
            raise CheckpointError(f"it has {length:,} bytes here, and others where it was published")
        return length

    async def _store_some(self, manifest: Manifest, first: int, body: bytes) -> int:
        """Segments from `first` on; returns how many they are. Each is served as soon as it is stored."""
        size = manifest.header.segment_bytes
        segments = [body[at : at + size] for at in range(0, len(body), size)]
        have, _ = self._exchange.reach_of(manifest.artifact)
        await trio.to_thread.run_sync(self._put, manifest, first, segments, have)
        for index in range(first, first + len(segments)):
            await self._exchange.feed(ev.Stored(manifest.artifact, index))
        return len(segments)

    def _put(self, manifest: Manifest, first: int, segments: Sequence[bytes], have: int) -> None:
        """Compare and write what is not there (the last of it may be a probe), in a thread. Raises like `_make`."""
        for index, segment in enumerate(segments, first):
            if hash_of(segment) != manifest.expected(index):
                raise CheckpointError(
                    f"segment {index} is not as it was published: another version of the compressor here?"
                )
            if not have >> index & 1:
                self._store.put_bytes(manifest.artifact, index, segment)

    def _save_pages(self, manifest: Manifest) -> None:
        for page in manifest.pages():
            self._store.save_page(manifest.artifact, page)

    async def _wait_until_complete(self, manifest: Manifest) -> None:
        with trio.move_on_after(FINISH_SECONDS):
            while not self._store.is_complete(manifest.artifact):
                await trio.sleep(PROBE_LOOK_SECONDS)
            return
        raise StoreError("it could not be completed on the disk")

    def _require_use(self, manifest: Manifest) -> None:
        """Raises StaleError when there is a newer one, or newer weights need the room."""
        known = self.newest()
        if known is None or known.manifest.artifact != manifest.artifact:
            raise StaleError("there is a newer snapshot")
        if self.pressed():
            raise StaleError("newer weights need its room on the disk")
