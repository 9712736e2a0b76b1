"""The publication desk: the one place where artifacts of this host begin, grow, complete and are given up.

    live     what the trainer publishes: each leads on from the one before; HEAD names the newest complete one
    aside    what the host makes itself of what is published (upkeep.py): another way to a version that is out already

At most one of each is open. Invariants: the seq is on disk before its header leaves; the header is on disk before it is
offered; a publication that dies half-way (trainer gone, bound outgrown, disk full, host restarted) is followed by a
signed Abort for its seq, which every later start of the host knows again; HEAD names only what is complete, and what
comes aside never moves it back: after a restart HEAD is the highest version, then the highest seq.
"""

from __future__ import annotations

from functools import partial

import trio

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.retention import RETAIN_MOST
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.artifact.writer import ArtifactWriter
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import AuroraError, DiskFullError, RefusedError, ShapeError, StaleError
from aurora_p2p.host.publication import Newest, make_header, newest_of
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import reach
from aurora_p2p.net.drive import ExchangeDriver
from aurora_p2p.store.ledger import Ledger
from aurora_p2p.store.schema import PublicationAborted, PublicationCompleted, PublicationOpened
from aurora_p2p.swarm.catalog import MAX_ABORTED, MAX_KNOWN
from aurora_p2p.swarm.events import Aborted, Finished, Produced, Publish, Restored, Retire
from aurora_p2p.types import NO_BASE, StateDigest, SwarmId, Version
from aurora_p2p.wire.limits import MAX_PAGE_HASHES
from aurora_p2p.wire.signed import seal
from aurora_p2p.wire.trainer import BeginPublish
from aurora_p2p.wire.trust import Abort

MAX_CHAIN = MAX_KNOWN - 2 * RETAIN_MOST
"""Deltas onto one snapshot: none of them can be let go of, and every member has to know them all, beside the young ones
from before the snapshot."""
BUSY_SECONDS = 0.5
"""When a trainer may try again whose predecessor's publication is still being given up."""

_FIRST = Version(0)


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
        self._open: ArtifactWriter | None = None
        self._aside: ArtifactWriter | None = None
        self._beginning = False
        self._highest = ledger.highest_seq()
        self.newest: Newest | None = None
        self._since: set[Version] = set()
        """Versions after the newest snapshot."""
        self._snapshot = Version(-1)
        self.completed = self.aborted = self.asides = 0
        """completed: live ones. asides: complete ones of this start."""
        self._following = _FIRST
        self.extract_seconds: float | None = None
        """Of the newest publication of this start: from its header to its final page."""
        self.waits = ""
        """Why the last attempt to publish found no room on the disk, one line; empty once one did. The trainer tries
        again by itself."""

    @property
    def under_way(self) -> ArtifactWriter | None:
        """The publication that is being written now."""
        return self._open

    @property
    def deltas(self) -> int:
        """Versions since the newest snapshot: what a newcomer has to apply after it."""
        return len(self._since)

    @property
    def busy(self) -> bool:
        """Whether a live artifact is being published now."""
        return self._beginning or self._open is not None

    async def restore(self, found: list[tuple[Manifest, set[int]]], following: Version = _FIRST) -> None:
        """After a start: offer what is complete again, and abort what was cut off.

        following: the lowest version that may come next if nothing is left of those that the ledger knows.

        What was given up before is aborted again: a node that has been away since may still be fetching it, and a host
        that was killed once more cannot know who has heard.
        """
        self._following = following
        for given_up in self._ledger.aborted(MAX_ABORTED):
            if given_up.artifact is not None:
                await self._send_abort(Abort(self._swarm, given_up.seq, given_up.artifact))
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
            self._note_version(newest)
            if self.newest is None or (newest.version, newest.seq) > (self.newest.version, self.newest.seq):
                self.newest = newest

    def is_foreign(self, manifest: Manifest) -> bool:
        """Whether somebody holds a publication that is signed with our key and newer than all that this home knows of:
        the home was restored from a backup, or runs twice."""
        return manifest.header.seq > self._highest

    async def begin(self, begin: BeginPublish, segment_bytes: int) -> None:
        """Reserve a seq, sign the header, offer it. Raises StaleError for a base that is not the newest publication.

        Raises RefusedError while another one is open, DiskFullError at once when the ledger waits for room. Whatever it
        raises, no publication of this trainer is open afterwards.
        """
        if self.busy:
            raise RefusedError(
                "another publication is under way",
                hint="wait for it, or close that trainer",
                retry_seconds=BUSY_SECONDS,
            )
        if self._ledger.waits:
            raise DiskFullError(self._ledger.waits, hint="make room on the host's disk")
        base = self._base_of(begin)
        self._beginning = True
        try:
            self._open = await self._write_header(begin, base, segment_bytes)
            await self._offer(self._open)
        except AuroraError as error:
            self._note_full(error)
            await self.abort()
            raise
        finally:
            self._beginning = False

    async def _write_header(
        self, begin: BeginPublish, base: Newest | None, segment_bytes: int, page_segments: int = 1
    ) -> ArtifactWriter:
        """Reserve a seq and disk. Raises StoreError."""
        seq = self._highest = await self._ledger.reserve_seq(begin.version)
        reach("seq.reserved")
        header = make_header(begin, self._swarm, self._ledger.run, seq, base, segment_bytes)
        for artifact in await trio.to_thread.run_sync(self._store.make_room, header.size_bound):
            await self._driver.feed(Retire(artifact))
        make = partial(ArtifactWriter, header, self._publish, self._store, page_segments=page_segments)
        writer = await trio.to_thread.run_sync(make)
        reach("header.written")
        return writer

    async def _offer(self, publication: ArtifactWriter) -> None:
        seq = publication.manifest.header.seq
        await self._ledger.commit([PublicationOpened(seq, publication.artifact)])
        reach("header.opened")
        await self._driver.feed(Publish(publication.manifest))

    def _base_of(self, begin: BeginPublish) -> Newest | None:
        """What the header names as its base; raises when `begin` does not follow the newest publication."""
        newest = self.newest
        if begin.kind == "snapshot":
            if begin.base_version != NO_BASE:
                raise ShapeError("a snapshot has no base")
            base, lowest = None, newest.version if newest else self._following
        else:
            if newest is None or (begin.base_version, begin.base_digest) != (newest.version, newest.digest):
                raise StaleError(
                    "the delta's base is not the newest publication", hint="attach again, or publish a snapshot"
                )
            if self.deltas >= MAX_CHAIN:
                raise StaleError(
                    f"{self.deltas} deltas follow the newest snapshot", hint="publish a snapshot: full=True, once"
                )
            base, lowest = newest, Version(newest.version + 1)
        if begin.version < lowest:
            raise StaleError(f"version {begin.version} is out of order: {lowest} is the lowest that may follow")
        return base

    async def add(self, piece: bytes) -> None:
        """The next bytes of the open publication."""
        try:
            await self._grow(self._current(), piece)
        except DiskFullError as error:
            self._note_full(error)
            raise

    async def _grow(self, publication: ArtifactWriter, piece: bytes) -> None:
        indices = await trio.to_thread.run_sync(publication.add, piece)
        reach("body.added")
        if indices:
            await self._driver.feed(Produced(publication.artifact, indices))

    async def end(self, digest: StateDigest) -> Manifest:
        """Complete the open publication; on disk and in HEAD when this returns."""
        publication = self._current()
        try:
            self.newest = await self._finish(publication, digest)
        except DiskFullError as error:
            self._note_full(error)
            raise
        self._open, self.completed, self.waits = None, self.completed + 1, ""
        self.extract_seconds = boottime() - publication.opened
        reach("publication.offered")
        return publication.manifest

    async def _finish(self, publication: ArtifactWriter, digest: StateDigest) -> Newest:
        """Complete on disk, in the ledger and in the swarm. Raises StoreError."""
        indices = await trio.to_thread.run_sync(partial(publication.finish, digest, now=boottime()))
        newest = newest_of(publication.manifest)
        if newest is None:
            raise ShapeError("the publication has no final page")
        reach("publication.completing")
        await self._ledger.commit([PublicationCompleted(newest.seq, newest.manifest_hash, newest.digest)])
        reach("publication.completed")
        if indices:
            last_bytes = publication.manifest.length_of(indices[-1])
            await self._driver.feed(Produced(publication.artifact, indices, last_bytes))
        await self._driver.feed(Finished(publication.artifact))
        self._note_version(newest)
        return newest

    def _note_version(self, newest: Newest) -> None:
        """A version has a complete artifact."""
        if newest.kind == "snapshot":
            self._since = {version for version in self._since if version > newest.version}
            self._snapshot = max(self._snapshot, newest.version)
        elif newest.version > self._snapshot:
            self._since.add(newest.version)

    async def abort(self) -> None:
        """Give the open publication up, if there is one."""
        publication, self._open = self._open, None
        if publication is not None:
            await self._give_up(publication)

    async def _give_up(self, publication: ArtifactWriter) -> None:
        self.aborted += 1
        seq = publication.manifest.header.seq
        await self._send_abort(Abort(self._swarm, seq, publication.artifact))
        reach("publication.aborting")
        await trio.to_thread.run_sync(self._store.retire, publication.artifact)  # first: it may be what fills the disk
        await self._ledger.commit([PublicationAborted(seq)])

    # ---- aside

    async def begin_aside(self, begin: BeginPublish, base: Newest | None, segment_bytes: int) -> None:
        """Open an artifact that leads to a version that is out already. base: what it starts from, None: a snapshot.

        Raises RefusedError while another one is open, StoreError; then `abort_aside` what there is.
        """
        if self._aside is not None:
            raise RefusedError("another artifact is being made aside")
        if self._ledger.waits:
            raise DiskFullError(self._ledger.waits, hint="make room on the host's disk")
        page_segments = 1 if base else MAX_PAGE_HASHES  # a snapshot is rebuilt by members: few pages are few probes
        self._aside = await self._write_header(begin, base, segment_bytes, page_segments)
        await self._offer(self._aside)

    async def add_aside(self, piece: bytes) -> None:
        """The next bytes of it. Raises ShapeError when it outgrows its bound, StoreError."""
        if self._aside is not None:
            await self._grow(self._aside, piece)

    async def end_aside(self, digest: StateDigest) -> Newest | None:
        """Complete it; HEAD stays what it is."""
        if self._aside is None:
            return None
        done = await self._finish(self._aside, digest)
        self._aside, self.asides = None, self.asides + 1
        return done

    async def abort_aside(self) -> None:
        """Give it up, if there is one."""
        publication, self._aside = self._aside, None
        if publication is not None:
            await self._give_up(publication)

    async def _send_abort(self, abort: Abort) -> None:
        await self._driver.feed(Aborted(seal(self._publish, abort)))

    def _note_full(self, error: AuroraError) -> None:
        if isinstance(error, DiskFullError):
            self.waits = str(error)

    def _current(self) -> ArtifactWriter:
        if self._open is None:
            raise AuroraError("no publication is open", hint="send BeginPublish first")
        return self._open
