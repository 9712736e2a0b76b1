"""The publication desk: the one place where artifacts of this host begin, grow, complete and are given up.

One publication at a time. Invariants: the seq is on disk before its header leaves; the header is on disk before it is
offered; a publication that dies half-way (trainer gone, bound outgrown, disk full, host restarted) is followed by a
signed Abort for its seq, which every later start of the host knows again; HEAD names only what is complete.
"""

from __future__ import annotations

from functools import partial

import trio

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.store import RETAIN_MOST, ArtifactStore
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import AuroraError, DiskFullError, RefusedError, ShapeError, StaleError
from aurora_p2p.host.publication import Newest, Publication, make_header, newest_of
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import reach
from aurora_p2p.net.drive import ExchangeDriver
from aurora_p2p.store.ledger import Ledger
from aurora_p2p.store.schema import PublicationAborted, PublicationCompleted, PublicationOpened
from aurora_p2p.swarm.catalog import MAX_ABORTED, MAX_KNOWN
from aurora_p2p.swarm.events import Aborted, Finished, Produced, Publish, Restored
from aurora_p2p.types import NO_BASE, StateDigest, SwarmId, Version
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
        self._open: Publication | None = None
        self._beginning = False
        self._highest = ledger.highest_seq()
        self.newest: Newest | None = None
        self._following = _FIRST
        self.completed = self.aborted = self.deltas = 0
        """deltas: complete ones since the newest snapshot."""
        self.extract_seconds: float | None = None
        """Of the newest publication of this start: from its header to its final page."""
        self.waits = ""
        """Why the last attempt to publish found no room on the disk, one line; empty once one did. The trainer tries
        again by itself."""

    @property
    def under_way(self) -> Publication | None:
        """The publication that is being written now."""
        return self._open

    @property
    def busy(self) -> bool:
        """Whether an artifact is being published now."""
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
            if self.newest is None or newest.seq > self.newest.seq:
                self._complete(newest)

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
            seq = self._highest = await self._ledger.reserve_seq(begin.version)
            reach("seq.reserved")
            header = make_header(begin, self._swarm, self._ledger.run, seq, base, segment_bytes)
            publication = await trio.to_thread.run_sync(partial(Publication, header, self._publish, self._store))
            self._open = publication
            reach("header.written")
            await self._ledger.commit([PublicationOpened(seq, publication.artifact)])
            reach("header.opened")
            await self._driver.feed(Publish(publication.manifest))
        except AuroraError as error:
            self._note_full(error)
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
        publication = self._current()
        try:
            indices = await trio.to_thread.run_sync(publication.add, piece)
        except DiskFullError as error:
            self._note_full(error)
            raise
        reach("body.added")
        if indices:
            await self._driver.feed(Produced(publication.artifact, indices))

    async def end(self, digest: StateDigest) -> Manifest:
        """Complete the open publication; on disk and in HEAD when this returns."""
        publication = self._current()
        try:
            indices = await trio.to_thread.run_sync(partial(publication.finish, digest, now=boottime()))
        except DiskFullError as error:
            self._note_full(error)
            raise
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
        self._complete(newest)
        self._open, self.completed, self.waits = None, self.completed + 1, ""
        self.extract_seconds = boottime() - publication.opened
        reach("publication.offered")
        return publication.manifest

    def _complete(self, newest: Newest) -> None:
        """HEAD names this one from now on."""
        self.newest = newest
        self.deltas = 0 if newest.kind == "snapshot" else self.deltas + 1

    async def abort(self) -> None:
        """Give the open publication up, if there is one."""
        publication, self._open = self._open, None
        if publication is None:
            return
        self.aborted += 1
        seq = publication.manifest.header.seq
        await self._send_abort(Abort(self._swarm, seq, publication.artifact))
        reach("publication.aborting")
        await trio.to_thread.run_sync(self._store.retire, publication.artifact)  # first: it may be what fills the disk
        await self._ledger.commit([PublicationAborted(seq)])

    async def _send_abort(self, abort: Abort) -> None:
        await self._driver.feed(Aborted(seal(self._publish, abort)))

    def _note_full(self, error: AuroraError) -> None:
        if isinstance(error, DiskFullError):
            self.waits = str(error)

    def _current(self) -> Publication:
        if self._open is None:
            raise AuroraError("no publication is open", hint="send BeginPublish first")
        return self._open
