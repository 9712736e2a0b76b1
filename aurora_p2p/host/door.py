"""The trainer's door: the local socket over which training processes publish, submit prompts and take rollouts.

Only processes of the same user reach it (0700 home, 0600 socket). One connection at a time may publish; a connection
that closes in the middle of a publication aborts it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from msgspec import structs

from aurora_p2p.errors import AuroraError, DiskFullError, RefusedError, WireError
from aurora_p2p.host.answers import PoolDoor
from aurora_p2p.host.desk import PublicationDesk
from aurora_p2p.host.steps import StepEntry, StepHistory
from aurora_p2p.lease.events import VersionPublished
from aurora_p2p.local.channel import TrioChannel
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.control import open_unix_listener
from aurora_p2p.types import NO_BASE, Record, RunId, Step, SwarmId, Version
from aurora_p2p.wire.control import Noted
from aurora_p2p.wire.trainer import (
    AbortPublish,
    AskStatus,
    Attach,
    Attached,
    BeginPublish,
    Body,
    EndPublish,
    Failed,
    Published,
    Rollouts,
    StatusJson,
    StepDone,
    SubmitPrompts,
    TakeRollouts,
    TrainerRequest,
    Waiting,
)

MAX_WAIT_SECONDS = 30.0
ABORT_SECONDS = 5.0
"""How long a stopping host may take to note an abort; a full disk may refuse it, and then the next start does it."""
FULL_SECONDS = 2.0
"""When a trainer may try again that met a full disk."""


def _retry_seconds(error: AuroraError) -> float:
    """After how long the same request may succeed; 0 when it never will."""
    if isinstance(error, RefusedError):
        return error.retry_seconds
    return FULL_SECONDS if isinstance(error, DiskFullError) else 0.0


class TrainerDoor:
    """Serves trainers. on_published: called after each completed publication; on_step: after each step that a trainer
    reports. status: the host's snapshot. explain: what to tell a trainer that waits."""

    def __init__(self, swarm: SwarmId, run: RunId, segment_bytes: int, desk: PublicationDesk, pool: PoolDoor) -> None:
        self._swarm, self._run, self._segment_bytes = swarm, run, segment_bytes
        self._desk, self._pool = desk, pool
        self.steps = StepHistory()
        self.on_published: Callable[[Published, str], None] = lambda published, kind: None
        self.on_step: Callable[[StepEntry], None] = lambda entry: None
        self.status: Callable[[], dict[str, Any]] = dict
        self.explain: Callable[[Waiting], str] = lambda waiting: waiting.why

    async def serve(self, path: Path, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Listen at `path` until cancelled; started once it does. Raises PortInUseError."""
        listener = open_unix_listener(path)
        task_status.started()
        try:
            await trio.serve_listeners(self._serve_one, [listener])
        finally:
            path.unlink(missing_ok=True)

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        channel: TrioChannel[TrainerRequest] = TrioChannel(stream, TrainerRequest)  # type: ignore[arg-type]
        connection = _Connection(self.steps)
        self.steps.connections += 1
        try:
            while True:
                request, payload = await channel.receive()
                reply = await self._answer(connection, request, payload)
                if reply is not None:
                    await channel.send(reply)
        except (EOFError, WireError):
            pass  # the trainer is gone, or is no trainer: what it began is aborted below
        finally:
            self.steps.connections -= 1
            connection.waits_for(None)
            with trio.CancelScope(deadline=trio.current_time() + ABORT_SECONDS, shield=True):
                await self._give_up(connection)
            with trio.CancelScope(shield=True):
                await channel.aclose()

    async def _answer(self, connection: _Connection, request: TrainerRequest, payload: bytes) -> Record | None:
        try:
            return await self._carry_out(connection, request, payload)
        except AuroraError as error:  # a ledger that failed also ends PoolDoor.run, and so the host
            failed = Failed(str(error)[:500], error.hint[:500], _retry_seconds(error))
            if isinstance(request, BeginPublish | Body):
                connection.failed = failed  # answered by EndPublish or AbortPublish: the trainer reads only then
                await self._give_up(connection)
                return None
            return failed

    async def _give_up(self, connection: _Connection) -> None:
        """What the connection has open is aborted now: nodes need not fetch the rest, and its disk space is free."""
        if connection.publishing:
            connection.publishing = False
            await self._desk.abort()

    async def _carry_out(self, connection: _Connection, request: TrainerRequest, payload: bytes) -> Record | None:
        if not isinstance(request, TakeRollouts):
            connection.waits_for(None)
        match request:
            case BeginPublish():
                connection.failed = None
                await self._desk.begin(request, self._segment_bytes)
                connection.publishing = True
            case Body():
                if connection.failed is None:
                    connection.require_publishing()
                    await self._desk.add(payload)
            case EndPublish() | AbortPublish():
                return await self._close(connection, request)
            case Attach():
                return self._attached()
            case TakeRollouts():
                return await self._take(connection, request)
            case SubmitPrompts():
                reply = await self._pool.handle(request)
                return reply.message if reply else Noted()
            case StepDone():
                self.on_step(self.steps.done(request, boottime()))
                return Noted()
            case AskStatus():
                return StatusJson(json.dumps(self.status()))
        return None

    async def _close(self, connection: _Connection, request: EndPublish | AbortPublish) -> Record:
        failed, connection.failed = connection.failed, None
        if isinstance(request, AbortPublish) or failed is not None:
            await self._give_up(connection)
            return failed if failed is not None and isinstance(request, EndPublish) else Noted()
        connection.require_publishing()
        connection.publishing = False
        try:
            manifest = await self._desk.end(request.digest)
        except AuroraError:
            await self._desk.abort()
            raise
        newest = self._desk.newest
        if newest is None or manifest.final is None:
            return Failed("the publication was lost")
        await self._pool.handle(VersionPublished(newest.version, newest.manifest_hash, newest.digest))
        published = Published(
            newest.seq, newest.version, newest.manifest_hash, manifest.final.segments, manifest.final.length
        )
        self.on_published(published, newest.kind)
        return published

    def _attached(self) -> Attached:
        newest = self._desk.newest
        if newest is None:
            lost = self._pool.pool.book.newest
            none = Version(NO_BASE)
            return Attached(self._swarm, self._run, none, b"", self._segment_bytes, following=Version(lost + 1))
        return Attached(
            self._swarm,
            self._run,
            newest.version,
            newest.digest,
            self._segment_bytes,
            newest.seq,
            newest.manifest_hash,
            self._desk.deltas,
            Version(newest.version + 1),
        )

    async def _take(self, connection: _Connection, request: TakeRollouts) -> Record:
        connection.waits_for(request.step)
        give_up = boottime() + min(request.wait_seconds, MAX_WAIT_SECONDS)
        while True:
            reply = await self._pool.handle(request)
            message = reply.message if reply else Failed("no answer")
            if isinstance(message, Waiting) and boottime() < give_up:
                await self._pool.wait_for_change(give_up - boottime())
                continue
            if isinstance(message, Waiting):
                return structs.replace(message, why=self.explain(message))
            if isinstance(message, Rollouts):
                self.steps.took(message)
            connection.waits_for(None)
            return message


class _Connection:
    """What one trainer connection is in the middle of."""

    def __init__(self, steps: StepHistory) -> None:
        self.publishing = False
        self.failed: Failed | None = None
        self._steps = steps
        self._waits_for: Step | None = None

    def waits_for(self, step: Step | None) -> None:
        """Its trainer waits for this step's rollouts (None: for nothing); the polls of one wait go together."""
        if step == self._waits_for:
            return
        if self._waits_for is not None:
            self._steps.waiting_ended(self._waits_for, boottime())
        if step is not None:
            self._steps.waiting_began(step, boottime())
        self._waits_for = step

    def require_publishing(self) -> None:
        """A connection completes what it began itself, never another's."""
        if not self.publishing:
            raise AuroraError("no publication is open on this connection", hint="send BeginPublish first")
