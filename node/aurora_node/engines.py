"""The engines of a node, one after the other: each is rebuilt from the store by what weights.py stages.

    STARTING --> WORKING --dies, or takes too much memory--> (a growing pause) --> STARTING
                    \\--its memory is wanted elsewhere--> UNLOADED --wanted again--> STARTING
                    \\--drained--> gone

Invariants: at most one engine runs. However it ends, its lease goes back and its finished samples are still sent.
"""

from __future__ import annotations

import os
from pathlib import Path

import trio

from aurora_node.config import NodeConfig
from aurora_node.link import HostLink
from aurora_node.measure import rss_of
from aurora_node.presence import GIB, Stance
from aurora_node.weights import Weights
from aurora_node.work import LeaseWorker
from aurora_p2p.engine.client import EngineClient, open_engine
from aurora_p2p.errors import CheckpointError, ChildError, StoreError
from aurora_p2p.local.child import Limits
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.output import Output
from aurora_p2p.wire.control import CommitFailed

MAX_RESTART_SECONDS = 60.0
"""Longest pause between two starts of an engine that keeps dying."""
WATCH_SECONDS = 2.0
"""Between two looks at the engine's memory: reading one number of /proc."""
HARD_LIMIT = 1.5
"""RLIMIT_DATA over max_ram_gib: it counts what is reserved, of which an engine touches two thirds or more."""
HARD_MARGIN_BYTES = 2 * GIB
"""Stacks and arenas of its threads, reserved and hardly touched."""
BULK_NICE_LESS = 5
"""The data plane needs little, and soon: it runs before the engine."""


class Engines:
    """Run one `run`; `stand` says whether an engine may take memory now."""

    def __init__(
        self, config: NodeConfig, home: Path, weights: Weights, worker: LeaseWorker, link: HostLink, output: Output
    ) -> None:
        self._config, self._log = config, home / "engine.log"
        self._weights, self._worker, self._link, self._output = weights, worker, link, output
        self._unload = False
        self._wanted = trio.Event()
        self._pid = 0
        self.restarts = 0

    def stand(self, stance: Stance) -> None:
        """End the engine when its memory is to be free, and start one when it no longer is."""
        self._unload = stance.unload
        if self._unload:
            self._worker.leave()
        else:
            self._wanted.set()

    def stop(self) -> None:
        """After the worker was drained: also end a wait for an engine that nobody wants any more."""
        self._wanted.set()

    @property
    def memory(self) -> int:
        """Bytes that the engine holds; 0 without one."""
        return rss_of(self._pid) if self._pid else 0

    @property
    def pid(self) -> int:
        """Of the engine's process; 0 without one."""
        return self._pid

    async def run(self) -> None:
        """Run engines until the worker is drained. Raises UsageError when the settings name none that there is."""
        pause = 1.0
        while not self._worker.drained:
            if self._unload:
                await self._wait_until_wanted()
                continue
            started = boottime()
            try:
                await self._one_engine()
                continue
            except* (ChildError, CheckpointError, StoreError) as group:
                self.restarts += 1
                await self._lost("; ".join(str(error) for error in group.exceptions))
            pause = 1.0 if boottime() - started > MAX_RESTART_SECONDS else min(2 * pause, MAX_RESTART_SECONDS)
            if not self._worker.drained:
                await trio.sleep(pause)

    async def _wait_until_wanted(self) -> None:
        self._weights.detach()
        self._worker.figures.state = "unloaded: the machine's memory is free for others"
        self._output.note("unloaded")
        self._wanted = trio.Event()
        await self._wanted.wait()

    async def _lost(self, detail: str) -> None:
        self._output.event("engine-lost", f"the engine is restarted: {detail}", detail=detail)
        self._weights.problem = f"the engine was restarted: {detail}"
        held = self._weights.held
        if held is not None:
            await self._link.commit_failed(CommitFailed(held.version, detail[:500]))

    async def _one_engine(self) -> None:
        config = self._config
        try:
            async with open_engine(
                engine=config.engine,
                device=device_of(config.device),
                threads=config.threads or max((os.cpu_count() or 2) - 1, 1),
                max_batch=config.max_batch,
                limits=engine_limits(config),
                log=self._log,
            ) as engine:
                self._weights.attach(engine)
                self._pid = engine.pid
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._weights.run, engine)
                    nursery.start_soon(self._watch_memory, engine)
                    if not self._unload:
                        await self._worker.run(engine)
                    nursery.cancel_scope.cancel()
        finally:
            self._pid = 0  # the process is gone, and its memory with it

    async def _watch_memory(self, engine: EngineClient) -> None:
        """End an engine that takes more than its owner allows. Raises ChildError."""
        cap = int(self._config.max_ram_gib * GIB)
        while cap:
            await trio.sleep(WATCH_SECONDS)
            taken = rss_of(engine.pid)
            if taken > cap:
                raise ChildError(
                    f"the engine took {taken / GIB:.2f} GiB of memory, more than {cap / GIB:.2f} (max_ram_gib)",
                    hint="raise max_ram_gib, lower max_batch, or join a run with a smaller model",
                )


def device_of(wanted: str) -> str:
    """ "auto" becomes cuda where an NVIDIA driver is loaded; torch is not imported here."""
    if wanted != "auto":
        return wanted
    return "cuda" if Path("/proc/driver/nvidia/version").exists() else "cpu"


def engine_limits(config: NodeConfig) -> Limits:
    """Of the engine child. A GPU's driver reserves far more than it takes: there the measured size alone counts."""
    cap = config.max_ram_gib * GIB
    hard = int(cap * HARD_LIMIT) + HARD_MARGIN_BYTES if cap and device_of(config.device) == "cpu" else 0
    return Limits(config.nice, config.io_priority, hard)


def bulk_limits(config: NodeConfig) -> Limits:
    """Of the data plane's child."""
    return Limits(max(config.nice - BULK_NICE_LESS, 0), config.io_priority)
