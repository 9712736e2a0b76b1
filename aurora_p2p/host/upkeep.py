"""What the host publishes by itself: squashed deltas for laggards, and now and then a snapshot for newcomers.

    IDLE --a laggard, or many deltas since the last snapshot--> FOLDING --> published aside, or given up --> IDLE

Both are made in a child (artifact/folding.py) of what the host has published, at the lowest priority, and published
aside: HEAD, and the trainer's next delta, take no notice. At most one is made at a time; none begins, and no piece of
one is stored, while a live publication is open. With a new snapshot everything that lies before it can be let go of,
here and at every node, so that disks stay bounded however long a run is.

Invariants: what is published was proven against the digest that the trainer's publication named; a fold that fails is
aborted like any publication, and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import trio

from aurora_p2p.artifact.chain import Checkpoint
from aurora_p2p.artifact.folding import Folding, open_fold
from aurora_p2p.artifact.retention import Resident
from aurora_p2p.artifact.routes import Plan, WriteBudget, is_due, snapshot_plan, squash_plan
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.errors import AuroraError, StoreError
from aurora_p2p.host.desk import PublicationDesk
from aurora_p2p.host.laggards import Laggards, Standing
from aurora_p2p.host.publication import Newest
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.output import Output
from aurora_p2p.types import NO_BASE, ArtifactId, PeerId, Version
from aurora_p2p.wire.trainer import BeginPublish

LOOK_SECONDS = 1.0
"""Between two looks: members report as often."""
BUSY_SECONDS = 0.05
"""Between two looks whether the live publication is out: it takes seconds."""
AGAIN_SECONDS = 60.0
"""After a fold that failed: a full disk, or a damaged one, is not mended at once."""


class Upkeep:
    """Run one `run`. standings: what members last said. published: told of each artifact, awaited before the next."""

    def __init__(
        self,
        desk: PublicationDesk,
        store: ArtifactStore,
        segment_bytes: int,
        bytes_per_hour: int,
        output: Output,
        log: Path | None = None,
    ) -> None:
        """bytes_per_hour: of snapshots; 0 makes none. log: file that gets what fold children print."""
        self._desk, self._store, self._segment_bytes, self._output, self._log = desk, store, segment_bytes, output, log
        self._budget, self._laggards = WriteBudget(bytes_per_hour), Laggards()
        self._not_before = float("-inf")
        self._made = {"squash": 0, "snapshot": 0}
        self._making: Plan | None = None
        self._failed, self._settled = "", Version(-1)
        self.standings: Callable[[], Mapping[PeerId, Standing]] = dict
        self.published: Callable[[Newest], Awaitable[None]] = _nobody

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            if boottime() >= self._not_before and not self._desk.busy:
                await self.look()

    def status(self) -> dict[str, Any]:
        """Plain values. settled: a version at which nothing was due; failed: why the last fold was given up."""
        making = self._making
        return {
            "squashes": self._made["squash"],
            "snapshots": self._made["snapshot"],
            "making": None if making is None else {"version": making.version, "kind": _kind(making)},
            "settled": self._settled,
            "failed": self._failed,
        }

    async def look(self) -> None:
        """Make what is due now, if anything."""
        newest = self._desk.newest
        if newest is None:
            return
        residents = self._store.residents()
        plan = self._snapshot_due(residents, newest)
        if plan is None:
            plan = self._squash_due(residents, newest)
        if plan is None:
            self._settled = newest.version
            return
        self._making = plan
        try:
            await self._make(plan, {one.artifact: one for one in residents})
        finally:
            self._making = None

    def _snapshot_due(self, residents: list[Resident], newest: Newest) -> Plan | None:
        snapshots = [one for one in residents if one.header.kind == "snapshot"]
        last = max(snapshots, key=lambda one: one.header.version, default=None)
        if last is None or not self._budget.allows(boottime()):
            return None
        after = {
            one.header.version: one
            for one in sorted(residents, key=lambda one: one.header.seq, reverse=True)
            if one.header.kind == "delta" and one.header.version > last.header.version
        }  # of several deltas to one version the first, which the trainer published
        if not is_due(last, list(after.values())):
            return None
        return snapshot_plan(residents, newest.version, newest.digest)

    def _squash_due(self, residents: list[Resident], newest: Newest) -> Plan | None:
        bases = self._laggards.look(self.standings(), newest.version, now=boottime())
        digests = {one.header.version: one for one in residents}
        for base in bases:
            reached = digests.get(base)
            start = Checkpoint(base, reached.manifest, reached.digest) if reached else None
            plan = squash_plan(residents, start) if start else None
            self._laggards.made(base, newest.version)
            if plan is not None and plan.digest == newest.digest:
                return plan
        return None

    # ---- making one

    async def _make(self, plan: Plan, residents: Mapping[ArtifactId, Resident]) -> None:
        """Fold and publish; a failure is told, and ends in an Abort."""
        pinned = [artifact for artifact in plan.artifacts if self._pin(artifact)]
        try:
            if len(pinned) == len(plan.artifacts):
                await self._fold(plan, residents)
        except AuroraError as error:
            self._not_before, self._failed = boottime() + AGAIN_SECONDS, str(error)
            self._output.event("fold-failed", f"version {plan.version} could not be folded: {error}", hint=error.hint)
        finally:
            for artifact in pinned:
                self._store.unpin(artifact)
            with trio.CancelScope(shield=True):
                await self._desk.abort_aside()

    def _pin(self, artifact: ArtifactId) -> bool:
        try:
            self._store.pin(artifact)
        except StoreError:
            return False  # retired since the plan was made
        return True

    async def _fold(self, plan: Plan, residents: Mapping[ArtifactId, Resident]) -> None:
        started, length = boottime(), 0
        sources = [self._store.source(artifact) for artifact in plan.artifacts]
        async with open_fold(sources, base=plan.base, log=self._log) as folding:
            begin, base = self._begin(plan, folding, residents)
            await self._until_idle()
            await self._desk.begin_aside(begin, base, self._segment_bytes)
            async with aclosing(folding.pieces()) as pieces:
                async for piece in pieces:
                    await self._until_idle()
                    length += len(piece)
                    await self._desk.add_aside(piece)
            await self._until_idle()
            done = await self._desk.end_aside(plan.digest)
        if done is None:
            return
        self._budget.spend(length, boottime())
        self._made[_kind(plan)] += 1
        self._failed = ""
        self._tell(plan, begin, length, boottime() - started)
        await self.published(done)

    def _begin(
        self, plan: Plan, folding: Folding, residents: Mapping[ArtifactId, Resident]
    ) -> tuple[BeginPublish, Newest | None]:
        """The header of the result, and what it starts from."""
        first = residents[plan.artifacts[0]].header
        base = _newest_of(residents[plan.artifacts[plan.base - 1]]) if plan.base else None
        begin = BeginPublish(
            version=plan.version,
            kind="delta" if base else "snapshot",
            base_version=base.version if base else NO_BASE,
            base_digest=base.digest if base else b"",
            layout=folding.begun.layout,
            size_bound=folding.begun.size_bound,
            class_map=folding.begun.class_map,
            tensors=() if base else first.tensors,
            model=None if base else first.model,
        )
        return begin, base

    async def _until_idle(self) -> None:
        """A live publication goes first: on the disk, and in what nodes are sent."""
        while self._desk.busy:
            await trio.sleep(BUSY_SECONDS)

    def _tell(self, plan: Plan, begin: BeginPublish, length: int, seconds: float) -> None:
        what = f"squash of {begin.base_version} to {plan.version}" if plan.base else f"snapshot of {plan.version}"
        self._output.event(
            "squashed" if plan.base else "snapshotted",
            f"{what}: {length:,} bytes out of {len(plan.artifacts)} artifacts in {seconds:.1f} s",
            version=plan.version,
            base=begin.base_version,
            bytes=length,
            seconds=round(seconds, 3),
        )


def _kind(plan: Plan) -> str:
    return "squash" if plan.base else "snapshot"


async def _nobody(_newest: Newest) -> None:
    """Nobody wants to know."""


def _newest_of(one: Resident) -> Newest:
    return Newest(one.header.seq, one.header.version, one.artifact, one.manifest, one.digest, one.header.kind)
