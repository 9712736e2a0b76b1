"""The exchange's hands on the store: what has to be written, done in order by one thread, answered by events.

Jobs that touch the disk leave the daemon's loop, so that an fsync or a slow disk delays no link. A disk that refuses
makes a segment missing again (StoreFailed) and is reported, so that fetching pauses; nothing is lost by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from aurora_p2p.artifact.folder import disk
from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.errors import StoreError
from aurora_p2p.local.clock import boottime
from aurora_p2p.net.backlog import Backlog
from aurora_p2p.swarm import events as ev
from aurora_p2p.types import ArtifactId

MAX_JOBS = 256
"""Jobs waiting beyond which nothing more is taken from the links."""
BATCH = 32
"""Jobs done in one visit of the thread: a small segment costs less than the hop."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Complete an artifact: everything of it is stored."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Remove:
    """Aborted or contradicted."""

    artifact: ArtifactId


@dataclass(frozen=True, slots=True)
class Finished:
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DiskRefused:
    """job: to be put again later; None when the machine itself will ask for the segment again."""

    detail: str
    job: Finish | None


Job = ev.Keep | ev.Discard | Finish | Remove
Outcome = ev.Stored | ev.StoreFailed | Finished | DiskRefused


class Keeper:
    """`jobs` in, outcomes to `report`, spool files done with to `release` (in the loop's thread). Run one `run`."""

    def __init__(
        self,
        store: ArtifactStore,
        report: Callable[[Outcome], None],
        release: Callable[[Sequence[str]], None] = lambda tokens: None,
    ) -> None:
        self._store, self._report, self._release = store, report, release
        self.jobs: Backlog[Job] = Backlog(MAX_JOBS)

    async def run(self) -> None:
        while True:
            batch = await self.jobs.take(BATCH)
            with trio.CancelScope(shield=True):  # a job that has begun is finished, or the store would not know of it
                outcomes = await trio.to_thread.run_sync(self._do_all, batch)
            self._release([job.token for job in batch if isinstance(job, ev.Keep | ev.Discard)])
            for outcome in outcomes:
                self._report(outcome)

    def _do_all(self, batch: list[Job]) -> list[Outcome]:
        return [outcome for job in batch for outcome in self._do(job)]

    def _do(self, job: Job) -> list[Outcome]:
        try:
            match job:
                case ev.Keep():
                    return self._keep(job)
                case ev.Discard():
                    pass
                case Remove(artifact):
                    self._store.retire(artifact)
                case Finish(manifest):
                    self._finish(manifest)
                    return [Finished(manifest)]
        except (StoreError, OSError) as error:
            return [DiskRefused(str(error), job if isinstance(job, Finish) else None)]
        return []

    def _keep(self, job: ev.Keep) -> list[Outcome]:
        try:
            self._store.save_page(job.artifact, job.page)
            with disk(Path(job.token)):
                segment = Path(job.token).read_bytes()
            self._store.put_bytes(job.artifact, job.index, segment)
        except StoreError as error:
            failed = ev.StoreFailed(job.artifact, job.index)
            gone = not isinstance(error.__cause__, OSError)  # retired meanwhile: the disk is not to blame
            return [failed] if gone else [failed, DiskRefused(str(error), None)]
        return [ev.Stored(job.artifact, job.index)]

    def _finish(self, manifest: Manifest) -> None:
        if self._store.is_complete(manifest.artifact) or manifest.signed_final is None:
            return
        for page in manifest.pages():
            self._store.save_page(manifest.artifact, page)
        self._store.save_final(manifest.artifact, manifest.signed_final)
        self._store.finish(manifest.artifact, now=boottime())
