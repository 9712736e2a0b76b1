"""A host's pool over a real ledger on disk, driven without an event loop of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from aurora_p2p.lease.events import Event, records_of
from aurora_p2p.lease.pool import WorkPool
from aurora_p2p.store.ledger import Ledger
from aurora_p2p.store.schema import PublicationCompleted
from aurora_p2p.types import Version
from tests.lease.world import World, digest_of, manifest_of


class DurableWorld(World):
    """A World whose every decision is committed before its reply; `restart` knows nothing but the file."""

    def __init__(self, path: Path | None = None, **options: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="aurora-books-")
        self.path = path or Path(self._folder.name) / "ledger.sqlite"
        self.disk = Ledger.open(self.path)
        self._kept = 0
        """Records of `ledger` that are on disk."""
        super().__init__(**options)

    def new_pool(self) -> WorkPool:
        return WorkPool(self.disk.run, self.disk.secret, self.disk.epoch, self.options)

    def restart(self) -> None:
        self.disk.close()
        self.disk = Ledger.open(self.path)
        self.pool = self.new_pool()
        effects = self.pool.restore(self.disk.restore(), now=self.now)
        self.ledger += records_of(effects)
        self._commit()

    @contextmanager
    def lost(self) -> Iterator[None]:
        before, kept = len(self.ledger), self._kept
        self._kept = 1 << 62  # nothing is written
        yield
        del self.ledger[before:]
        self._kept = kept
        self.restart()

    def handle(self, event: Event) -> Any:
        reply = super().handle(event)
        self._commit()
        return reply

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        self._commit()

    def publish(self, version: int) -> None:
        async def complete() -> None:
            seq = await self.disk.reserve_seq(Version(version))
            await self.disk.commit([PublicationCompleted(seq, manifest_of(version), digest_of(version))])

        trio.run(complete)
        super().publish(version)

    def close(self) -> None:
        self.disk.close()
        self._folder.cleanup()

    def _commit(self) -> None:
        new = self.ledger[self._kept :]
        if new:
            trio.run(self.disk.commit, new)
            self._kept = len(self.ledger)
