"""The daemon's end of an engine child.

    async with open_engine(...) as engine:
        await engine.load(header, body, digest)
        async with aclosing(engine.generate(sampling, prompts, samples)) as batches:
            async for batch in batches: ...

A failed request raises the error that the engine named; the engine lives on. When the child dies, or says nothing for
SILENT_SECONDS, every open and later call raises ChildError at once; the owner opens a new engine and loads from the
store. Leaving a generation early, by break or cancellation, stops it in the child.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio

from aurora_p2p import errors
from aurora_p2p.engine.names import HOME_PREFIX
from aurora_p2p.errors import AuroraError, ChildError, WireError
from aurora_p2p.local import faults
from aurora_p2p.local.child import Child, Limits, open_child
from aurora_p2p.types import StateDigest, Version
from aurora_p2p.wire.control import LeaseSample, Sampling
from aurora_p2p.wire.engine import (
    Audit,
    Commit,
    Done,
    EngineFailed,
    EngineReply,
    EngineRequest,
    EngineStart,
    Generate,
    Load,
    Samples,
    Stage,
    StopGenerating,
)
from aurora_p2p.wire.fold import Source
from aurora_p2p.wire.limits import MAX_LEASE_SAMPLES
from aurora_p2p.wire.manifest import Header

_MODULE = "aurora_p2p.engine.worker"
SILENT_SECONDS = 600.0
"""Loading the largest model from a slow disk stays below it; no decoding step comes near it."""
REPLIES = MAX_LEASE_SAMPLES + 1
"""Most replies to one request: each but the last carries a finished sample. So the reader never waits for a caller."""
OUTGOING = 64
"""Requests on their way to the child, which reads them at once; a full queue makes callers wait."""
NICE = Limits(nice=5)
"""Compute yields to the control plane and to the owner's other programs."""
INHERITED = frozenset(
    {"PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES"}
    | {faults.VARIABLE}
)
"""All that an engine sees of the daemon's environment: no token or password of the owner is among it."""


class EngineClient:
    """Calls to one engine child; any task may call. Made by open_engine."""

    def __init__(self, child: Child[Any]) -> None:
        self._child = child
        self._ids = itertools.count(1)
        self._open: dict[int, trio.MemorySendChannel[EngineReply]] = {}
        self._outgoing, self._queued = trio.open_memory_channel[EngineRequest](OUTGOING)
        self._dead = ""
        """Why the engine can answer nothing more."""

    @property
    def pid(self) -> int:
        return self._child.pid

    async def load(self, header: Header, body: Path, digest: StateDigest, deltas: Sequence[Source] = ()) -> Done:
        """Serve a snapshot with deltas over it.

        Raises CheckpointError, DigestMismatch, WireError, StoreError, ChildError.
        """
        return await self._call(Load(next(self._ids), header, str(body), digest, tuple(deltas)))

    async def stage(self, header: Header, body: Path, digest: StateDigest) -> Done:
        """Decode and verify an artifact beside the live weights. Raises like load."""
        return await self._call(Stage(next(self._ids), header, str(body), digest))

    async def commit(self, version: Version, *, audit: bool = False) -> Done:
        """Serve a staged version; waits for generations that have begun. Raises like load."""
        return await self._call(Commit(next(self._ids), version, audit))

    async def audit(self) -> Done:
        """Recompute the digest of what is served. Raises DigestMismatch when it is wrong."""
        return await self._call(Audit(next(self._ids)))

    async def generate(
        self, sampling: Sampling, prompts: Sequence[tuple[int, ...]], samples: Sequence[LeaseSample]
    ) -> AsyncGenerator[Samples, None]:
        """Finished samples as they come; the last batch has `done`. Close the generator to stop early."""
        request = Generate(next(self._ids), sampling, tuple(prompts), tuple(samples))
        replies = await self._send(request)
        finished = False
        try:
            while not finished:
                reply = await self._reply(replies, Samples)
                finished = reply.done
                yield reply
        finally:
            del self._open[request.id]
            if not finished and not self._dead:
                self._stop(request.id)

    def _stop(self, generate: int) -> None:
        try:
            self._outgoing.send_nowait(StopGenerating(next(self._ids), generate))
        except trio.WouldBlock:
            # Not even a stop fits: the child has stopped reading, and ends by SILENT_SECONDS or at close.
            self._child.process.kill()

    async def _call(self, request: EngineStart | Load | Stage | Commit | Audit) -> Done:
        replies = await self._send(request)
        try:
            done: Done = await self._reply(replies, Done)
            return done
        finally:
            del self._open[request.id]

    async def _send(self, request: EngineRequest) -> trio.MemoryReceiveChannel[EngineReply]:
        if self._dead:
            raise ChildError(self._dead)
        sender, replies = trio.open_memory_channel[EngineReply](REPLIES)
        self._open[request.id] = sender
        await self._outgoing.send(request)
        return replies

    async def _reply(self, replies: trio.MemoryReceiveChannel[EngineReply], kind: type[Any]) -> Any:
        try:
            with trio.fail_after(SILENT_SECONDS):
                reply = await replies.receive()
        except trio.EndOfChannel:
            raise ChildError(self._dead) from None
        except trio.TooSlowError:
            self._child.process.kill()
            raise ChildError(f"the engine said nothing for {SILENT_SECONDS:.0f} s and was ended") from None
        if isinstance(reply, EngineFailed):
            raise _named_error(reply)
        if not isinstance(reply, kind):
            raise ChildError(f"the engine answered with {type(reply).__name__}")
        return reply

    async def _write(self) -> None:
        async for request in self._queued:
            try:
                await self._child.channel.send(request)
            except EOFError:
                return  # _read sees the same end and tells everyone

    async def _read(self) -> None:
        """Hand replies to their callers until the child ends; then fail whatever is open."""
        why = "ended"
        try:
            while True:
                reply, _ = await self._child.channel.receive()
                if sender := self._open.get(reply.id):
                    sender.send_nowait(reply)
        except EOFError:
            status = await self._child.process.wait()
            why = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        except WireError as error:
            self._child.process.kill()
            why = f"spoke nonsense: {error}"
        self._dead = f"the rollout engine (pid {self.pid}) {why}"
        for sender in self._open.values():
            sender.close()


@asynccontextmanager
async def open_engine(
    *,
    engine: str = "hf",
    device: str = "cpu",
    threads: int = 1,
    max_batch: int = 64,
    limits: Limits = NICE,
    log: Path | None,
) -> AsyncIterator[EngineClient]:
    """Start an engine child and wait until it is ready to load. log: file that gets what it prints.

    Raises UsageError for an unknown engine or device, ChildError when it does not start.
    """
    with tempfile.TemporaryDirectory(prefix=HOME_PREFIX) as home:
        env = {
            "HOME": home,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
        }
        child: Child[Any]
        async with open_child(_MODULE, EngineReply, log=log, limits=limits, env=env, inherit=INHERITED) as child:  # type: ignore[arg-type]
            client = EngineClient(child)
            with _alone():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client._read)
                    nursery.start_soon(client._write)
                    await client._call(EngineStart(next(client._ids), engine, device, threads, max_batch))
                    yield client
                    nursery.cancel_scope.cancel()


@contextmanager
def _alone() -> Iterator[None]:
    """The caller's own exception, not a group of one around it: the nursery is no business of theirs."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        raise group.exceptions[0] from group.exceptions[0].__cause__


def _named_error(failure: EngineFailed) -> AuroraError:
    kind = getattr(errors, failure.kind, None)
    if isinstance(kind, type) and issubclass(kind, AuroraError):
        return kind(failure.detail)
    return ChildError(f"{failure.kind}: {failure.detail}")
