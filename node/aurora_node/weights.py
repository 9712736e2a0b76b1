"""The weights a node holds: which artifacts it wants, what is staged, what is committed.

    artifact   ANNOUNCED -> (wanted) FETCHING -> COMPLETE -> STAGED beside the live weights -> COMMITTED at a boundary

Invariants: an artifact is staged only onto the very checkpoint its header names; a commit happens only between leases
(the caller of `commit_ready` promises that nothing is being generated); what is reported as held is what the engine
last proved. An engine that dies, or whose weights fail an audit, is replaced and rebuilt from the store: a snapshot and
the deltas after it, loaded together, before a model is made of them. If that fails, they are taken one by one, so that
the one at fault is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import trio

from aurora_node.known import Known
from aurora_p2p.artifact.chain import Candidate, Checkpoint, catch_up
from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.engine.client import EngineClient
from aurora_p2p.errors import CheckpointError, DigestMismatch, StoreError, WireError
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import reach
from aurora_p2p.types import ArtifactId, StateDigest, Version
from aurora_p2p.wire.engine import Done

KEPT_PAUSES = 512
"""Commits whose pause is remembered for the status: percentiles need no more."""


@dataclass(slots=True)
class WeightFigures:
    """What the status shows. Seconds are CLOCK_BOOTTIME differences."""

    commits: int = 0
    audits: int = 0
    audit_mismatches: int = 0
    failures: int = 0
    changed_elements: int = 0
    stage_seconds: float = 0.0
    commit_seconds: float = 0.0
    transfer_seconds: float = 0.0
    """Sum over artifacts: first heard of to complete."""
    waited_seconds: float = 0.0
    """Time the engine stood idle between hearing of newer weights and serving them."""
    pauses: list[float] = field(default_factory=list)
    """Per commit: last token before to first token after, seconds."""


async def _ignored(_artifact: ArtifactId) -> None:
    """Nobody wants to know."""


class Weights:
    """Follows the swarm's versions with one engine.

    accept: called with an artifact once disk is reserved for it (the exchange starts fetching).
    audit_every: full digest audit at every so many commits; a load is always audited.
    lacking: asked in a thread before that: why an artifact has no place now, "" when it has. note: Output.note.
    """

    def __init__(
        self,
        store: ArtifactStore,
        accept: Callable[[ArtifactId], Awaitable[None]],
        audit_every: int,
        lacking: Callable[[Manifest], str] = lambda manifest: "",
        note: Callable[..., None] = lambda name, **fields: None,
    ) -> None:
        self._store, self._accept, self._audit_every = store, accept, audit_every
        self._lacking, self._note = lacking, note
        self._without_room: dict[ArtifactId, str] = {}
        self._accepting = trio.Lock()
        self._engine: EngineClient | None = None
        self._known: dict[ArtifactId, Known] = {}
        self._staged: list[Checkpoint] = []
        self._wake = trio.Event()
        self._ready = trio.Event()
        self._last_token: float | None = None
        self._idle_since: float | None = None
        self.held: Checkpoint | None = None
        self.held_since = boottime()
        """When `held` became what it is."""
        self.audited = Version(-1)
        self.figures = WeightFigures()
        self._problem = ""
        self.on_unusable: Callable[[Manifest, str], None] = lambda manifest, why: None
        """Told of an artifact that could not be staged; it is set aside until `restored` brings it back."""
        self.decline: Callable[[ArtifactId], Awaitable[None]] = _ignored
        """Told of what is no longer on the way to the newest version: the exchange asks for no more of it."""
        self.retired: Callable[[ArtifactId], Awaitable[None]] = _ignored
        """Told of what the store gave up to make room."""
        self._rebase = self._one_by_one = False

    def rebase(self) -> None:
        """The engine's own weights are in doubt: end `run`, so that a fresh engine is loaded from the store."""
        self._rebase = True
        self._wake.set()

    @property
    def problem(self) -> str:
        """What stands in the way of newer weights; "" when nothing does."""
        return self._problem or next(iter(self._without_room.values()), "")

    @problem.setter
    def problem(self, text: str) -> None:
        self._problem = text

    def detach(self) -> None:
        """The engine is gone to free its memory: nothing is held, what is fetched stays on disk for the next."""
        self._engine, self.held, self._staged = None, None, []

    def attach(self, engine: EngineClient) -> None:
        """A new, empty engine: it is loaded from the store again."""
        self._engine, self.held, self._staged = engine, None, []
        self._rebase = self._one_by_one = False
        self._last_token = None
        self._wake.set()

    # ---- what the exchange tells

    async def announced(self, manifest: Manifest) -> None:
        """A new header of the publisher: fetch it if it is on the way to the newest version."""
        self._known.setdefault(manifest.artifact, Known(manifest, boottime()))
        await self.accept_wanted()

    async def completed(self, artifact: ArtifactId) -> None:
        """All its segments and its final page are in the store."""
        known = self._known.get(artifact)
        if known is None:
            return  # forgotten while the last segment was being written
        if not known.complete:
            known.begun = known.complete = True
            self.figures.transfer_seconds += boottime() - known.heard
        await self.accept_wanted()
        self._wake.set()

    def restored(self, manifest: Manifest, *, complete: bool, own: bool = False) -> None:
        """Found on disk at start, or (own) folded here."""
        self._known[manifest.artifact] = Known(manifest, boottime(), complete, begun=True, accepted=True, own=own)
        self._wake.set()

    @property
    def own(self) -> frozenset[ArtifactId]:
        """What was folded here."""
        return frozenset(artifact for artifact, known in self._known.items() if known.own)

    @property
    def newest_snapshot(self) -> Known | None:
        """Of the publisher's, whether or not it is wanted here."""
        found = (known for known in self._known.values() if known.manifest.header.kind == "snapshot" and not known.own)
        return max(found, key=lambda known: known.manifest.header.seq, default=None)

    @property
    def lacks_room(self) -> bool:
        """Whether something on the way to the newest version has no room."""
        return bool(self._without_room)

    def forget(self, artifact: ArtifactId) -> None:
        """Aborted, contradicted or retired."""
        self._known.pop(artifact, None)
        self._without_room.pop(artifact, None)

    def passed_by(self) -> list[ArtifactId]:
        """What was heard of, never fetched, and left behind: forget it, or a run's every snapshot is remembered.

        The newest snapshot stays: with it and the deltas in the store an engine starts anew.
        """
        snapshots = [known for known in self._known.values() if known.manifest.header.kind == "snapshot"]
        base = max(snapshots, key=lambda known: known.manifest.header.seq, default=None)
        held = self.held.version if self.held else Version(-1)
        return [
            artifact
            for artifact, known in self._known.items()
            if not known.begun and known is not base and known.manifest.header.version <= held
        ]

    def outdated(self) -> list[ArtifactId]:
        """Artifacts in flight that lead no further than what is held; forgotten here, to be dropped by the caller.

        Nobody may have the rest of them any more, and the exchange fetches only so many at a time: a node that was
        away again and again would end up waiting for nothing but those.
        """
        held = self.held.version if self.held else Version(-1)
        late = [
            artifact
            for artifact, known in self._known.items()
            if known.begun and not known.complete and known.manifest.header.version <= held
        ]
        for artifact in late:
            self.forget(artifact)
        return late

    async def accept_wanted(self) -> None:
        """Accept what is on the way to the newest version and has room; call again when there may be more room."""
        async with self._accepting:  # two callers must not accept the same artifact
            wanted = {step.artifact: self._known[step.artifact] for step in self._route()}
            self._without_room = {one: why for one, why in self._without_room.items() if one in wanted}
            for known in [known for known in self._known.values() if self._is_passed_over(known, wanted)]:
                known.accepted = False
                await self.decline(known.manifest.artifact)
            for known in wanted.values():
                if not known.accepted:
                    await self._accept_one(known)

    def _is_passed_over(self, known: Known, wanted: Collection[ArtifactId]) -> bool:
        """Whether it is being fetched, and a shorter way (a squash) has made that needless."""
        target = max((self._known[one].manifest.header.version for one in wanted), default=-1)
        header = known.manifest.header
        unwanted = known.manifest.artifact not in wanted and header.version <= target
        return unwanted and known.accepted and not known.complete

    async def _accept_one(self, known: Known) -> None:
        artifact = known.manifest.artifact
        why, given_up = await trio.to_thread.run_sync(self._make_room, known.manifest)
        for old in given_up:
            self.forget(old)
            await self.retired(old)
        if artifact not in self._known:  # forgotten meanwhile
            await trio.to_thread.run_sync(self._store.retire, artifact)
            return
        if why:
            if self._without_room.get(artifact) is None:
                self._note("no-room", version=known.manifest.header.version, why=why)
            self._without_room[artifact] = why
            return
        self._without_room.pop(artifact, None)
        known.begun = known.accepted = True
        await self._accept(artifact)

    def _make_room(self, manifest: Manifest) -> tuple[str, list[ArtifactId]]:
        """Reserve disk for an artifact, or say why there is none; and what was given up for it. Runs in a thread."""
        why, given_up = self._lacking(manifest), list[ArtifactId]()
        if why:
            return why, given_up
        try:
            given_up = self._store.make_room(manifest.header.size_bound)
            self._store.create(manifest.signed_header)
        except StoreError as error:
            why = f"{error}; {error.hint}" if error.hint else str(error)
        return why, given_up

    def _route(self) -> tuple[Candidate, ...]:
        tail = self._staged[-1] if self._staged else self.held
        held = self._store.held_bytes
        return catch_up(tail, [known.candidate(held(artifact)) for artifact, known in self._known.items()])

    # ---- staging, beside whatever the engine does

    async def run(self, engine: EngineClient) -> None:
        """Stage complete artifacts in order until cancelled.

        Raises ChildError when the engine dies, CheckpointError after `rebase`.
        """
        while True:
            if self._rebase:
                raise CheckpointError(self.problem)
            known = [self._known[one.artifact] for one in self._route()]
            ready = list(takewhile(lambda one: one.complete, known))
            if len(ready) > 1 and self.held is None and not self._one_by_one:
                await self._load_all(engine, ready)
                continue
            if ready:
                await self._stage(engine, ready[0])
                continue
            await self._wake.wait()
            self._wake = trio.Event()

    async def _load_all(self, engine: EngineClient, route: Sequence[Known]) -> None:
        """A snapshot with what follows it, at once. If that fails, nothing is loaded and they are taken one by one."""
        artifacts = [known.manifest.artifact for known in route]
        pinned: list[ArtifactId] = []
        reach("weights.staging")
        try:
            for artifact in artifacts:
                self._store.pin(artifact)
                pinned.append(artifact)
            first, *deltas = (self._store.source(artifact) for artifact in artifacts)
            done = await engine.load(first.header, Path(first.body), first.digest, deltas)
            self._committed(route[-1].reaches, done)
            self.figures.stage_seconds += done.seconds
        except (CheckpointError, WireError, StoreError) as error:
            self._one_by_one = True
            self._note("load-failed", artifacts=len(artifacts), why=str(error))
        finally:
            for artifact in pinned:
                self._store.unpin(artifact)
        self._announce_ready()

    async def _stage(self, engine: EngineClient, known: Known) -> None:
        manifest, final = known.manifest, known.manifest.final
        if final is None:
            raise CheckpointError(f"artifact {manifest.artifact.hex()[:16]} is complete without a final page")
        self._store.pin(manifest.artifact)
        reach("weights.staging")
        try:
            body = self._store.body_path(manifest.artifact)
            if self.held is None:
                done = await engine.load(manifest.header, body, final.digest)
                self._committed(known.reaches, done)
            else:
                done = await engine.stage(manifest.header, body, final.digest)
                reach("weights.staged")
                self._staged.append(known.reaches)
            self.figures.stage_seconds += done.seconds
        except (CheckpointError, WireError, StoreError) as error:
            self.figures.failures += 1
            self.figures.audit_mismatches += isinstance(error, DigestMismatch)
            self.problem = f"version {manifest.header.version} cannot be used: {error}"
            self.forget(manifest.artifact)
            self.on_unusable(manifest, self.problem)
        finally:
            self._store.unpin(manifest.artifact)
        self._announce_ready()

    def _announce_ready(self) -> None:
        self._ready.set()
        self._ready = trio.Event()

    # ---- committing, between leases

    @property
    def newest(self) -> Version:
        """The newest version held or staged."""
        tail = self._staged[-1] if self._staged else self.held
        return tail.version if tail else Version(-1)

    @property
    def fetching(self) -> Manifest | None:
        """The artifact in flight that is needed first; None when nothing is missing."""
        known = (self._known[step.artifact] for step in self._route())
        return next((one.manifest for one in known if one.accepted and not one.complete), None)

    async def commit_ready(self) -> Checkpoint | None:
        """Commit what is staged, if anything; returns what the engine now serves. Call between leases only.

        Raises DigestMismatch, CheckpointError or ChildError: the engine must be replaced.
        """
        while self._staged and self._engine is not None:
            target = self._staged[-1]
            audit = self.figures.commits % self._audit_every == 0
            try:
                reach("weights.committing")
                done = await self._engine.commit(target.version, audit=audit)
                reach("weights.committed")
            except DigestMismatch:
                self.figures.audit_mismatches += 1
                raise
            self._staged = [staged for staged in self._staged if staged.version > target.version]
            self._committed(target, done)
            self.figures.commits += 1
            self.figures.commit_seconds += done.seconds
        return self.held

    def _committed(self, checkpoint: Checkpoint, done: Done) -> None:
        if StateDigest(done.digest) != checkpoint.digest:
            self.figures.audit_mismatches += 1
            raise DigestMismatch(f"the engine holds other weights than version {checkpoint.version} names")
        self._count_waiting()
        self.held, self.held_since = checkpoint, boottime()
        self._note("committed", version=checkpoint.version, seconds=round(done.seconds, 4), audited=done.audited)
        self.figures.changed_elements += done.changed
        if done.audited:
            self.figures.audits += 1
            self.audited = checkpoint.version
        self.problem = ""

    async def wait_for_newer(self, than: Version, seconds: float) -> None:
        """Return when a newer version than `than` is staged or loaded, or after `seconds`."""
        with trio.move_on_after(seconds):
            while self.newest <= than:
                await self._ready.wait()

    # ---- figures of waiting and pausing

    def idle(self) -> None:
        """The engine has nothing to do."""
        if self._idle_since is None:
            self._idle_since = boottime()

    def busy(self) -> None:
        """The engine works again."""
        self._count_waiting()
        self._idle_since = None

    def _count_waiting(self) -> None:
        """Count the idle time so far, from when newer weights than those held were heard of."""
        if self._idle_since is None:
            return
        now, held = boottime(), self.held.version if self.held else Version(-1)
        heard = [known.heard for known in self._known.values() if known.manifest.header.version > held]
        self.figures.waited_seconds += max(now - max(self._idle_since, min(heard, default=now)), 0.0)
        self._idle_since = now

    def tokens_at(self, first: float, last: float, version: Version) -> None:
        """A batch's first and last token, CLOCK_BOOTTIME: the gap after a commit is its pause."""
        if self._last_token is not None and version != self._last_version:
            self.figures.pauses = [*self.figures.pauses[-KEPT_PAUSES:], first - self._last_token]
        self._last_token, self._last_version = last, version

    _last_version = Version(-1)
