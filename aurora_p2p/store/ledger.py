"""The host's ledger: nothing leaves or is acknowledged before it is in here and on disk.

    await ledger.commit(records)        from any number of tasks; returns when they, and all before them, are on disk

Group commit: while one transaction syncs, the callers behind it queue up and go together in the next one. `commit`
queues its records before its first checkpoint, so the order of calls is the order on disk, and an empty commit waits
for what is under way. A transaction holds each caller's records whole, or none of them.

A full disk makes everybody wait: the batch is kept and written as soon as there is room, and `waits` says so. Nothing
is granted or acknowledged meanwhile. After any other failed write the ledger refuses everything (`StoreError`): memory
would run ahead of the disk. Started again, the host knows exactly what it acknowledged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import trio
from sqlite_utils import Database

from aurora_p2p.errors import DiskFullError, StoreError
from aurora_p2p.lease.events import PoolRecord
from aurora_p2p.local import faults
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import reach
from aurora_p2p.store.database import open_database, store_errors
from aurora_p2p.store.schema import SCHEMA, LedgerRecord, migrations, pool_records, write
from aurora_p2p.types import ArtifactId, Generation, RunId, Seq, Version

In = TypeVar("In")
Out = TypeVar("Out")

MAX_QUEUED = 1 << 18
"""Records waiting for the disk: every member of the largest swarm with four full Submits under way."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.25, 2.0
"""Between two attempts to write to a full disk: doubled each time. An attempt costs one small write."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A publication that was under way when the host died: abort it (artifact None: no header ever left)."""

    seq: Seq
    version: Version
    artifact: ArtifactId | None


@dataclass(frozen=True, slots=True)
class CommitFigures:
    """Transactions synced since the start, and the time they took, as their callers waited for it."""

    commits: int = 0
    seconds: float = 0.0
    last_seconds: float = 0.0
    max_seconds: float = 0.0


class Ledger:
    """Open with `Ledger.open`; `close` when done. Methods that are not async are for start and end."""

    def __init__(self, path: Path, db: Database) -> None:
        self._path, self._db = path, db
        self._queue: list[LedgerRecord] = []
        self._accepted = self._written = 0
        self._lock = trio.Lock()
        self._flushing: trio.Event | None = None
        """Set when the batch under way is on disk, or its writer gave up."""
        self._failed: StoreError | None = None
        self._figures = CommitFigures()
        self._waiting: set[trio.CancelScope] = set()
        self.waits = ""
        """Why nothing gets to the disk just now, one line; empty while it does."""
        self.on_wait: Callable[[str], None] = lambda why: None
        """Called with `waits` when it changes."""
        row = db.execute("SELECT run, secret, epoch, generation FROM meta").fetchone()
        self.run, self.secret = RunId(row[0]), bytes(row[1])
        self.epoch: int = row[2]
        """Which opening of this ledger this is, from 1: a WorkPool's `epoch`."""
        self.generation = Generation(row[3])
        """The highest generation seen when the ledger was opened."""

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """Open or create; a new ledger draws its run id and secret. Raises StoreError."""
        db = open_database(path, migrations, SCHEMA)
        with store_errors(path):
            db.execute("UPDATE meta SET epoch = epoch + 1")
        return cls(path, db)

    def close(self) -> None:
        with store_errors(self._path):
            self._db.close()

    async def commit(self, records: Iterable[LedgerRecord]) -> None:
        """Return when `records` are on disk. Raises StoreError.

        Cancellation waits, for a write to disk is short; on a full disk it does not, and the records stay queued: they
        go to disk before anything that is committed later.
        """
        self._check()
        before = len(self._queue)
        self._queue += records
        self._accepted += len(self._queue) - before
        ticket = self._accepted
        if len(self._queue) > MAX_QUEUED:
            self._failed = StoreError(f"{self._path}: more than {MAX_QUEUED} records wait for the disk")
        waits = bool(self.waits)  # nothing is acknowledged meanwhile, also what has nothing to write
        with self._patience():
            while self._written < ticket or waits:
                if self._flushing is None:
                    await self._flush()
                else:
                    await self._flushing.wait()
                self._check()
                waits = waits and bool(self.waits)

    async def reserve_seq(self, version: Version) -> Seq:
        """The next publication number, on disk before it is returned; never given twice. Raises StoreError."""
        with self._patience():
            async with self._lock:
                self._check()
                return await self._insist(self._reserve, version)

    def restore(self) -> list[PoolRecord]:
        """What a new WorkPool replays. Raises StoreError, or WireError when a row is torn."""
        with store_errors(self._path):
            return list(pool_records(self._db, self.run))

    def aborted(self, most: int) -> list[Unfinished]:
        """The newest `most` publications that were given up after their header may have left, oldest first."""
        query = (
            "SELECT * FROM (SELECT seq, version, artifact FROM publications"
            " WHERE state = 'aborted' AND artifact IS NOT NULL ORDER BY seq DESC LIMIT ?) ORDER BY seq"
        )
        with store_errors(self._path):
            return [Unfinished(*row) for row in self._db.execute(query, (most,))]

    def unfinished(self) -> list[Unfinished]:
        """Publications to abort after a crash, oldest first."""
        query = "SELECT seq, version, artifact FROM publications WHERE state IN ('reserved', 'open') ORDER BY seq"
        with store_errors(self._path):
            return [Unfinished(*row) for row in self._db.execute(query)]

    async def _flush(self) -> None:
        """Write what is queued; everybody behind it wakes at once, and one of them writes the next batch."""
        self._flushing = done = trio.Event()
        try:
            async with self._lock:
                self._check()
                batch = list(self._queue)
                await self._insist(self._write, batch)
                del self._queue[: len(batch)]
                self._written += len(batch)
        finally:
            self._flushing = None
            done.set()

    def _check(self) -> None:
        if self._failed is not None:
            raise StoreError(str(self._failed), hint=self._failed.hint)

    async def _insist(self, work: Callable[[In], Out], argument: In) -> Out:
        """Do it in a thread; again and again while the disk is full."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                started = boottime()
                done = await trio.to_thread.run_sync(work, argument)
                self._count(boottime() - started)
            except DiskFullError as error:
                self._say(f"the disk is full: {error}")
                await trio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
            except StoreError as error:
                self._failed = error
                raise
            else:
                self._say("")
                return done

    def _count(self, seconds: float) -> None:
        figures = self._figures
        self._figures = CommitFigures(
            figures.commits + 1, figures.seconds + seconds, seconds, max(figures.max_seconds, seconds)
        )

    def status(self) -> dict[str, Any]:
        """How long the disk takes, and what waits for it: plain values."""
        return {**asdict(self._figures), "queued": len(self._queue), "waits": self.waits}

    def _say(self, why: str) -> None:
        if bool(why) == bool(self.waits):
            return
        self.waits = why
        for scope in self._waiting:
            scope.shield = not why
        self.on_wait(why)

    @contextlib.contextmanager
    def _patience(self) -> Iterator[None]:
        """Cancellation waits inside, except while the disk is full: a host must be able to stop then too."""
        with trio.CancelScope(shield=not self.waits) as scope:
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)

    def _write(self, batch: list[LedgerRecord]) -> None:
        with store_errors(self._path), self._db.atomic():
            faults.disk("write", self._path)
            for record in batch:
                write(self._db, self.run, record)
            if not batch:  # only to see whether there is room again
                self._db.execute("UPDATE meta SET epoch = epoch")
            reach("ledger.writing")
        reach("ledger.written")

    def highest_seq(self) -> Seq:
        """The highest number ever reserved here, or seen elsewhere (FloorSeen)."""
        highest = "SELECT max(seq, (SELECT coalesce(max(seq), 0) FROM publications)) FROM meta"
        with store_errors(self._path):
            return Seq(self._db.execute(highest).fetchone()[0])

    def _reserve(self, version: Version) -> Seq:
        with store_errors(self._path), self._db.atomic():
            seq = Seq(self.highest_seq() + 1)
            self._db.execute("INSERT INTO publications (seq, version, state) VALUES (?, ?, 'reserved')", (seq, version))
        return seq
