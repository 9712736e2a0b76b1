"""Folding what a node has stored, for itself: one squashed delta in the place of many, so that its disk stays bounded.

    snapshot, delta, delta, ...  -->  snapshot, squash, delta, ...  -->  snapshot    (when the squash has grown large)

A restart then loads a snapshot, one squash and the deltas since, and what they replace is let go of once nobody needs
it to catch up (artifact/retention.py). A squash writes a fraction of what a snapshot would; once it takes half of the
snapshot's bytes, the next fold is a snapshot. Both are made by a child at the lowest priority, proven against the
digest that the publisher signed, and kept in the store as artifacts signed with the node's own key: never offered to
anyone. Killed anywhere, the store has the old artifacts, or the old and the new.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path

import trio
from blake3 import blake3

from aurora_node.presence import Stance
from aurora_p2p.artifact.folding import Folding, open_fold
from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.retention import Resident, restart_route
from aurora_p2p.artifact.routes import FOLD_RATIO, WriteBudget, is_due
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.artifact.writer import ArtifactWriter, segment_size
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import AuroraError, DiskFullError, StoreError
from aurora_p2p.local.clock import boottime
from aurora_p2p.types import NO_BASE, ArtifactId, PeerId
from aurora_p2p.wire.manifest import Header

LOOK_SECONDS = 20.0
AGAIN_SECONDS = 600.0
"""After a fold that failed: a full disk, or a damaged one, is not mended at once, and nothing waits for a fold."""
SEGMENT_BYTES = 1 << 20
"""Of a folded artifact: what is hashed at a time; nobody is sent any."""


def mark_of(publisher: PeerId) -> bytes:
    """16 bytes, a folded artifact's nonce: whose publications it was made of. It does not outlive their key."""
    return blake3(publisher.encode()).digest(16)


class Folds:
    """Run one `run`. publisher: whose publications are folded. own: which artifacts were folded here.

    done: takes a new one, complete. floor: disk to leave free, bytes. log: file that gets what fold children print.
    """

    def __init__(
        self, store: ArtifactStore, identity: Identity, bytes_per_hour: int, floor: int, log: Path | None = None
    ) -> None:
        self._store, self._identity, self._floor, self.log = store, identity, floor, log
        self.turn = trio.Lock()
        """Held by whoever folds: one child at a time."""
        self._budget = WriteBudget(bytes_per_hour)
        self._working = True
        self.publisher: Callable[[], PeerId | None] = lambda: None
        self.own: Callable[[], frozenset[ArtifactId]] = frozenset
        self.done: Callable[[Manifest], None] = lambda manifest: None
        self.note: Callable[..., None] = lambda name, **fields: None
        self.folded = 0

    def stand(self, stance: Stance) -> None:
        """No fold begins while the machine is its owner's alone."""
        self._working = stance.working

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            if self._working:
                async with self.turn:
                    await self.look()

    def may_write(self, now: float) -> bool:
        """Whether a fold may begin: the machine is not its owner's alone, and the budget is not spent."""
        return self._working and self._budget.allows(now)

    def wrote(self, written: int) -> None:
        """Another fold has written so many bytes."""
        self._budget.spend(written, boottime())

    async def look(self) -> None:
        """Fold, if that is due. A failure is noted, and the old artifacts stay."""
        publisher = self.publisher()
        if publisher is None or not self._budget.allows(boottime()):
            return
        residents = {one.artifact: one for one in self._store.residents()}
        route = [residents[one.artifact] for one in restart_route(list(residents.values()))]
        if not route or not self._is_due(route):
            return
        try:
            await self._fold(route, mark_of(publisher))
        except AuroraError as error:
            self._budget.wait(AGAIN_SECONDS, boottime())
            self.note("fold-failed", version=route[-1].header.version, why=str(error))

    def _is_due(self, route: Sequence[Resident]) -> bool:
        own = self.own()
        return is_due(route[0], [one for one in route[1:] if one.artifact not in own])

    async def _fold(self, route: Sequence[Resident], mark: bytes) -> None:
        pinned: list[ArtifactId] = []
        try:
            for one in route:
                self._store.pin(one.artifact)
                pinned.append(one.artifact)
            await self._fold_pinned(route, mark)
        finally:
            for artifact in pinned:
                self._store.unpin(artifact)

    async def _fold_pinned(self, route: Sequence[Resident], mark: bytes) -> None:
        own, started = self.own(), boottime()
        squashed = sum(one.length for one in route[1:] if one.artifact in own)
        base = 0 if squashed > FOLD_RATIO * route[0].length else 1
        sources = [self._store.source(one.artifact) for one in route]
        async with open_fold(sources, base=base, log=self.log) as folding:
            writer = await trio.to_thread.run_sync(self._open, _header(route, base, mark, folding))
            try:
                async with aclosing(folding.pieces()) as pieces:
                    async for piece in pieces:
                        await trio.to_thread.run_sync(writer.add, piece)
                await trio.to_thread.run_sync(partial(writer.finish, route[-1].digest, now=boottime()))
            finally:
                if not self._store.is_complete(writer.artifact):
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(self._store.retire, writer.artifact)
        self._budget.spend(writer.length, boottime())
        self.folded += 1
        self.note(
            "folded",
            version=route[-1].header.version,
            kind="squash" if base else "snapshot",
            artifacts=len(route),
            bytes=writer.length,
            seconds=round(boottime() - started, 3),
        )
        self.done(writer.manifest)

    def _open(self, header: Header) -> ArtifactWriter:
        """Reserve disk, in a thread. Raises StoreError, DiskFullError."""
        self.require_room(header.size_bound)
        return ArtifactWriter(header, self._identity, self._store)

    def require_room(self, size_bound: int) -> None:
        """Raises DiskFullError when a fold would take what the owner wants free, StoreError; in a thread."""
        try:
            free = shutil.disk_usage(self._store.root).free - self._floor
        except OSError as error:
            raise StoreError(f"cannot look at the disk of {self._store.root}: {error.strerror}") from error
        if size_bound > free:
            raise DiskFullError(f"a fold of up to {size_bound:,} bytes has no room on the disk")


def _header(route: Sequence[Resident], base: int, mark: bytes, folding: Folding) -> Header:
    """Of a fold's result. base_manifest: the manifest hash of the publication that it ends at."""
    first, last, begun = route[0], route[-1], folding.begun
    return Header(
        format=first.header.format,
        swarm=first.header.swarm,
        run=first.header.run,
        version=last.header.version,
        seq=last.header.seq,
        nonce=mark,
        kind="delta" if base else "snapshot",
        base_version=first.header.version if base else NO_BASE,
        base_manifest=last.manifest,
        base_digest=first.digest if base else b"",
        layout=begun.layout,
        segment_bytes=segment_size(SEGMENT_BYTES, begun.size_bound),
        size_bound=begun.size_bound,
        class_map=begun.class_map,
        tensors=() if base else first.header.tensors,
        model=None if base else first.header.model,
    )
