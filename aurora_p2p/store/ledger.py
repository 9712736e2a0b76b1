"""The host's ledger: nothing leaves or is acknowledged before it is in here and on disk.

    await ledger.commit(records)        from any number of tasks; returns when they, and all before them, are on disk

Group commit: while one transaction syncs, the callers behind it queue up and go together in the next one. `commit`
queues its records before its first checkpoint, so the order of calls is the order on disk, and an empty commit waits
for what is under way. A transaction holds each caller's records whole, or none of them.

After a failed write the ledger refuses everything (`StoreError`): memory would run ahead of the disk. Started again,
the host knows exactly what it acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import trio
from sqlite_utils import Database

from aurora_p2p.errors import StoreError
from aurora_p2p.lease.events import PoolRecord
from aurora_p2p.store.database import open_database, store_errors
from aurora_p2p.store.schema import SCHEMA, LedgerRecord, migrations, pool_records, write
from aurora_p2p.types import ArtifactId, Generation, RunId, Seq, Version

In = TypeVar("In")
Out = TypeVar("Out")

MAX_QUEUED = 1 << 18
"""Records waiting for the disk: every member of the largest swarm with four full Submits under way."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A publication that was under way when the host died: abort it (artifact None: no header ever left)."""

    seq: Seq
    version: Version
    artifact: ArtifactId | None


class Ledger:
    """Open with `Ledger.open`; `close` when done. Methods that are not async are for start and end."""

    def __init__(self, path: Path, db: Database) -> None:
        self._path, self._db = path, db
        self._queue: list[LedgerRecord] = []
        self._accepted = self._written = 0
        self._lock = trio.Lock()
        self._failed: StoreError | None = None
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
        """Return when `records` are on disk. Raises StoreError. Cancellation waits: a write to disk is short."""
        self._check()
        before = len(self._queue)
        self._queue += records
        self._accepted += len(self._queue) - before
        ticket = self._accepted
        if len(self._queue) > MAX_QUEUED:
            self._failed = StoreError(f"{self._path}: more than {MAX_QUEUED} records wait for the disk")
        with trio.CancelScope(shield=True):
            async with self._lock:
                self._check()
                if self._written < ticket:
                    batch, self._queue = self._queue, []
                    await self._in_thread(self._write, batch)
                    self._written += len(batch)

    async def reserve_seq(self, version: Version) -> Seq:
        """The next publication number, on disk before it is returned; never given twice. Raises StoreError."""
        with trio.CancelScope(shield=True):
            async with self._lock:
                self._check()
                return await self._in_thread(self._reserve, version)

    def restore(self) -> list[PoolRecord]:
        """What a new WorkPool replays. Raises StoreError, or WireError when a row is torn."""
        with store_errors(self._path):
            return list(pool_records(self._db, self.run))

    def unfinished(self) -> list[Unfinished]:
        """Publications to abort after a crash, oldest first."""
        query = "SELECT seq, version, artifact FROM publications WHERE state IN ('reserved', 'open') ORDER BY seq"
        with store_errors(self._path):
            return [Unfinished(*row) for row in self._db.execute(query)]

    def _check(self) -> None:
        if self._failed is not None:
            raise StoreError(str(self._failed), hint=self._failed.hint)

    async def _in_thread(self, work: Callable[[In], Out], argument: In) -> Out:
        try:
            return await trio.to_thread.run_sync(work, argument)
        except StoreError as error:
            self._failed = error
            raise

    def _write(self, batch: list[LedgerRecord]) -> None:
        with store_errors(self._path), self._db.atomic():
            for record in batch:
                write(self._db, self.run, record)

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
