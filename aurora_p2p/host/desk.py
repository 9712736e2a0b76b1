"""The publication desk: the one place where artifacts of this host begin, grow, complete and are given up.

One publication at a time. Invariants: the seq is on disk before its header leaves; the header is on disk before it is
offered; a publication that dies half-way (trainer gone, bound outgrown, host restarted) is followed by a signed Abort
for its seq; HEAD names only what is complete.
"""

from __future__ import annotations

from functools import partial

import trio

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import AuroraError, ShapeError, StaleError
from aurora_p2p.host.publication import Newest, Publication, make_header, newest_of
from aurora_p2p.local.clock import boottime
from aurora_p2p.net.drive import ExchangeDriver
from aurora_p2p.store.ledger import Ledger
from aurora_p2p.store.schema import PublicationAborted, PublicationCompleted, PublicationOpened
from aurora_p2p.swarm.events import Aborted, Finished, Produced, Publish, Restored
from aurora_p2p.types import NO_BASE, StateDigest, SwarmId
from aurora_p2p.wire.signed import seal
from aurora_p2p.wire.trainer import BeginPublish
from aurora_p2p.wire.trust import Abort


class PublicationDesk:
    """Publishes for one trainer at a time."""

    def __init__(
        self,
        swarm: SwarmId,
        publish: Identity,
        ledger: Ledger,
        store: ArtifactStore,
        driver: ExchangeDriver,
    ) -> None:
        self._swarm, self._publish, self._ledger = swarm, publish, ledger
        self._store, self._driver = store, driver
        self._open: Publication | None = None
        self._beginning = False
        self._highest = ledger.highest_seq()
        self.newest: Newest | None = None
        self.completed = 0

    @property
    def busy(self) -> bool:
        """Whether an artifact is being published now."""
        return self._beginning or self._open is not None

    async def restore(self, found: list[tuple[Manifest, set[int]]]) -> None:
        """After a start: offer what is complete again, and abort what was cut off."""
        for unfinished in self._ledger.unfinished():
            if unfinished.artifact is not None:
                await self._send_abort(Abort(self._swarm, unfinished.seq, unfinished.artifact))
                self._store.retire(unfinished.artifact)
            await self._ledger.commit([PublicationAborted(unfinished.seq)])
        for manifest, have in found:
            newest = newest_of(manifest)
            if newest is None or not self._store.is_complete(manifest.artifact):
                self._store.retire(manifest.artifact)
                continue
            await self._driver.feed(Restored(manifest, have, origin=True))
            if self.newest is None or newest.seq > self.newest.seq:
                self.newest = newest

    def is_foreign(self, manifest: Manifest) -> bool:
        """Whether somebody holds a publication that is signed with our key and newer than all that this home knows of:
        the home was restored from a backup, or runs twice."""
        return manifest.header.seq > self._highest

    async def begin(self, begin: BeginPublish, segment_bytes: int) -> None:
        """Reserve a seq, sign the header, offer it. Raises StaleError for a base that is not the newest publication.

        Whatever it raises, no publication is open afterwards.
        """
        if self.busy:
            raise AuroraError("another publication is under way", hint="wait for it, or close that trainer")
        base = self._base_of(begin)
        self._beginning = True
        try:
            seq = self._highest = await self._ledger.reserve_seq(begin.version)
            header = make_header(begin, self._swarm, self._ledger.run, seq, base, segment_bytes)
            publication = await trio.to_thread.run_sync(partial(Publication, header, self._publish, self._store))
            self._open = publication
            await self._ledger.commit([PublicationOpened(seq, publication.artifact)])
            await self._driver.feed(Publish(publication.manifest))
        except AuroraError:
            await self.abort()
            raise
        finally:
            self._beginning = False

    def _base_of(self, begin: BeginPublish) -> Newest | None:
        """What the header names as its base; raises when `begin` does not follow the newest publication."""
        newest = self.newest
        if begin.kind == "snapshot":
            if begin.base_version != NO_BASE:
                raise ShapeError("a snapshot has no base")
            base, lowest = None, newest.version if newest else 0
        else:
            if newest is None or (begin.base_version, begin.base_digest) != (newest.version, newest.digest):
                raise StaleError(
                    "the delta's base is not the newest publication", hint="attach again, or publish a snapshot"
                )
            base, lowest = newest, newest.version + 1
        if begin.version < lowest:
            raise StaleError(f"version {begin.version} is out of order: {lowest} is the lowest that may follow")
        return base

    async def add(self, piece: bytes) -> None:
        """The next bytes of the open publication."""
        publication = self._current()
        indices = await trio.to_thread.run_sync(publication.add, piece)
        if indices:
            await self._driver.feed(Produced(publication.artifact, indices))

    async def end(self, digest: StateDigest) -> Manifest:
        """Complete the open publication; on disk and in HEAD when this returns."""
        publication = self._current()
        indices = await trio.to_thread.run_sync(partial(publication.finish, digest, now=boottime()))
        newest = newest_of(publication.manifest)
        if newest is None:
            raise ShapeError("the publication has no final page")
        await self._ledger.commit([PublicationCompleted(newest.seq, newest.manifest_hash, newest.digest)])
        if indices:
            last_bytes = publication.manifest.length_of(indices[-1])
            await self._driver.feed(Produced(publication.artifact, indices, last_bytes))
        await self._driver.feed(Finished(publication.artifact))
        self._open, self.newest, self.completed = None, newest, self.completed + 1
        return publication.manifest

    async def abort(self) -> None:
        """Give the open publication up, if there is one."""
        publication, self._open = self._open, None
        if publication is None:
            return
        seq = publication.manifest.header.seq
        await self._send_abort(Abort(self._swarm, seq, publication.artifact))
        await self._ledger.commit([PublicationAborted(seq)])
        await trio.to_thread.run_sync(self._store.retire, publication.artifact)

    async def _send_abort(self, abort: Abort) -> None:
        await self._driver.feed(Aborted(seal(self._publish, abort)))

    def _current(self) -> Publication:
        if self._open is None:
            raise AuroraError("no publication is open", hint="send BeginPublish first")
        return self._open
