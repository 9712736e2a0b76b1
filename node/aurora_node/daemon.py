"""`aurora-node join`: everything a node is made of, put together.

    control host (libp2p)   link.py       joins, stays fresh, asks for leases, submits
    bulk child (TLS)        net/drive.py  receives and re-serves segments
    engine child            engine/       decodes, stages, commits, generates
    weights.py, work.py                   which version, which lease
    control socket                        status, caps

    JOINING -> FOLLOWING -> (SIGTERM) DRAINING: leases handed back -> gone

A child that dies is replaced and, for the engine, rebuilt from the store; its leases go back. Losing the host or the
bootstrap stops nothing: the node finishes and serves what it has.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from aurora_node.config import NodeConfig
from aurora_node.link import HostLink, Place
from aurora_node.status import snapshot
from aurora_node.weights import Weights
from aurora_node.work import LeaseWorker, WorkFigures
from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.engine.client import open_engine
from aurora_p2p.errors import CheckpointError, ChildError, StaleError, StoreError, UnreachableError, WireError
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.config import make_home
from aurora_p2p.local.control import serve_control, socket_path
from aurora_p2p.local.files import write_durably
from aurora_p2p.local.output import Output
from aurora_p2p.net.addresses import advertised_bulk, check_cidrs, own_scope
from aurora_p2p.net.drive import ExchangeDriver, Notice, open_exchange
from aurora_p2p.net.host import ControlHost, open_control_host
from aurora_p2p.store.peers import SwarmMemory
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.freshness import Trust
from aurora_p2p.swarm.roster import RosterView
from aurora_p2p.types import ArtifactId
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.control import CommitFailed
from aurora_p2p.wire.names import head_topic
from aurora_p2p.wire.signed import Signed, open_signed
from aurora_p2p.wire.ticket import Ticket
from aurora_p2p.wire.trust import Charter, Equivocation, Floor, Head, PeerRecord

HOUSEKEEPING_SECONDS = 5.0
DRAIN_SECONDS = 20.0
MAX_RESTART_SECONDS = 60.0
"""Longest pause between two starts of an engine that keeps dying."""
LIVE_SECONDS = 0.5
ENGINE_NICE = 5
"""Compute yields to the control plane and to the owner's other programs."""


def run_node(home: Path, config: NodeConfig, ticket: Ticket, *, as_json: bool) -> None:
    """Join and work until SIGTERM or Ctrl-C. Raises AuroraError."""
    trio.run(_main, home, config, ticket, Output(as_json=as_json))


async def _main(home: Path, config: NodeConfig, ticket: Ticket, output: Output) -> None:
    check_cidrs(config.local)
    identity = Identity.load_or_create(home / "node.key")
    folder = make_home(home / "swarms" / ticket.swarm[-16:])
    memory = SwarmMemory.open(folder / "memory.sqlite", ticket.swarm)
    try:
        with ArtifactStore(folder / "artifacts", int(config.quota_gib * 2**30)) as store:
            await _serve(_Parts(home, folder, config, ticket, output, identity, memory, store))
    finally:
        memory.close()


@dataclass(frozen=True, slots=True)
class _Parts:
    home: Path
    folder: Path
    config: NodeConfig
    ticket: Ticket
    output: Output
    identity: Identity
    memory: SwarmMemory
    store: ArtifactStore

    @property
    def place(self) -> Place:
        typed = (*self.config.bootstraps, *self.ticket.bootstraps)
        local = (*self.config.local, *self.ticket.local, *own_scope(typed))
        return Place(self.ticket, self.config.bootstraps, tuple(dict.fromkeys(local)))


async def _serve(parts: _Parts) -> None:
    config = parts.config
    known, told = parts.memory.floor(), parts.ticket.floor
    trust = Trust(parts.ticket.swarm, Floor(max(known.generation, told.generation), max(known.seq, told.seq)))
    charter = parts.memory.charter()
    if charter is not None:
        trust.adopt(charter)
    async with (
        open_control_host(parts.identity, config.listen) as control,
        open_exchange(
            identity=parts.identity,
            swarm=parts.ticket.swarm,
            store=parts.store,
            spool=parts.folder / "spool",
            listen=config.bulk_listen,
            up_rate=int(config.up_kib_per_second * 1024),
            down_rate=int(config.down_kib_per_second * 1024),
            local=parts.place.local,
            log=parts.home / "bulk.log",
        ) as driver,
    ):
        await _Node(parts, control, driver, trust).run()


class _Node:
    """The running daemon: owns the tasks, holds no rule of its own."""

    def __init__(self, parts: _Parts, control: ControlHost, driver: ExchangeDriver, trust: Trust) -> None:
        self._parts, self._control, self._driver, self._trust = parts, control, driver, trust
        self._link = HostLink(parts.identity, control, parts.place, parts.memory, trust)
        self._link.on_roster = self._link.on_charter = self._trust_seen
        self._link.on_equivocation = self._equivocated
        self._weights = Weights(parts.store, self._accept, parts.config.audit_every)
        self._figures = WorkFigures()
        self._worker = LeaseWorker(parts.identity, parts.config, self._link, self._weights, self._figures)
        self._news = trio.Event()
        self._told_charter: Charter | None = None
        self._told_roster: RosterView | None = None
        self._hinted = trio.Event()
        self._restarts = 0
        self._recovered: set[ArtifactId] = set()

    async def run(self) -> None:
        """Join, then until SIGTERM or SIGINT."""
        output = self._parts.output
        record = self._record()
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_on_signal, signals, nursery.cancel_scope)
                await nursery.start(
                    serve_control,
                    socket_path(self._parts.home, "control"),
                    {"status": self._ask_status, "caps": self._caps},
                )
                await self._link.join(record)
                output.event(
                    "joined",
                    f"joined {self._parts.ticket.swarm}; members see each other's addresses, and what is trained on",
                    peer=self._parts.identity.peer,
                    swarm=self._parts.ticket.swarm,
                    host=self._link.host,
                )
                await self._tell_exchange()
                await self._restore()
                nursery.start_soon(self._follow_trust)
                self._weights.on_unusable = lambda manifest, why: nursery.start_soon(self._recover, manifest, why)
                nursery.start_soon(self._link.stay_fresh, record)
                nursery.start_soon(self._listen_for_hints)
                nursery.start_soon(self._refresh_on_hint)
                nursery.start_soon(self._watch_notices)
                nursery.start_soon(self._keep_house)
                nursery.start_soon(self._show)
                await self._work()
                nursery.cancel_scope.cancel()

    async def _stop_on_signal(self, signals: Any, everything: trio.CancelScope) -> None:
        async for _ in signals:
            break
        self._parts.output.event("draining", "stopping: handing leases back")
        self._worker.drain()
        if self._link.host is not None:  # else there is nobody to hand anything back to
            await trio.sleep(DRAIN_SECONDS)
        everything.cancel()

    def _record(self) -> PeerRecord:
        config = self._parts.config
        return PeerRecord(
            swarm=self._parts.ticket.swarm,
            peer=self._parts.identity.peer,
            seq=self._parts.memory.next_record_seq(),
            control=tuple(address.rpartition("/p2p/")[0] for address in self._control.addresses())[:16],
            bulk=advertised_bulk(config.advertise, self._control.addresses(), self._driver.port),
            up_kbps=int(config.up_kib_per_second * 8.192),
        )

    # ---- trust and roster

    def _trust_seen(self, _roster: RosterView | None = None) -> None:
        """The charter or the roster changed."""
        self._worker.stand_still(self._evidence.exists())
        self._news.set()

    async def _follow_trust(self) -> None:
        """Give the exchange each charter and roster."""
        while True:
            self._news = trio.Event()
            await self._tell_exchange()
            await self._news.wait()

    async def _tell_exchange(self) -> None:
        trust = self._trust
        if trust.charter is not None and trust.charter is not self._told_charter:
            self._told_charter = trust.charter
            await self._driver.feed(ev.TrustChanged(trust.publish, trust.hosts, trust.floor.generation))
        if trust.roster is not None and trust.roster is not self._told_roster:
            self._told_roster = trust.roster
            await self._driver.feed(ev.RosterChanged(trust.roster))

    @property
    def _evidence(self) -> Path:
        """Where proof against the publisher of this generation is kept: a restarted node stands still as well."""
        return self._parts.folder / f"equivocation-{self._trust.floor.generation}.bin"

    def _equivocated(self, evidence: Equivocation) -> None:
        write_durably(self._evidence, encode(evidence))
        self._worker.stand_still(True)
        text = "the publisher signed two artifacts with one number: taking no work until its keys are renewed"
        self._parts.output.event("equivocation", text, evidence=str(self._evidence))

    async def _listen_for_hints(self) -> None:
        async with self._control.subscribe(head_topic(self._parts.ticket.swarm), self._is_hint) as messages:
            async for _ in messages:
                self._hinted.set()

    def _is_hint(self, _signer: object, payload: bytes) -> bool:
        """Whether a gossiped HEAD is the publisher's; only such are passed on."""
        try:
            open_signed(decode(payload, Signed, limit=16_384), Head, {self._trust.publish})
        except WireError:
            return False
        return True

    async def _refresh_on_hint(self) -> None:
        while True:
            await self._hinted.wait()
            self._hinted = trio.Event()
            try:
                await self._link.challenge()
            except (UnreachableError, StaleError, WireError) as error:
                self._parts.output.event("stale", f"no fresh HEAD: {error}")

    # ---- artifacts

    async def _restore(self) -> None:
        found = await trio.to_thread.run_sync(lambda: self._parts.store.load(now=boottime()))
        for manifest, have in found:
            if manifest.publisher != self._trust.publish:
                self._parts.store.retire(manifest.artifact)
                continue
            await self._driver.feed(ev.Restored(manifest, have))
            self._weights.restored(manifest, complete=self._parts.store.is_complete(manifest.artifact))
            self._link.run = manifest.header.run

    async def _accept(self, artifact: ArtifactId) -> None:
        await self._driver.feed(ev.Accept(artifact))

    async def _watch_notices(self) -> None:
        async for notice in self._driver.notices:
            await self._notice(notice)

    async def _notice(self, notice: Notice) -> None:
        output = self._parts.output
        match notice:
            case ev.Announced(manifest):
                await self._announced(manifest)
            case ev.Completed(artifact):
                await self._weights.completed(artifact)
            case ev.AbortSeen(artifact) | ev.Contradicted(artifact):
                self._weights.forget(artifact)
            case ev.Banned(peer, seconds, reason):
                output.event("banned", f"banned {peer} for {seconds:.0f} s: {reason}", peer=peer, reason=reason)
            case ev.Equivocated(evidence):
                self._equivocated(evidence)

    async def _announced(self, manifest: Manifest) -> None:
        size = manifest.header.size_bound
        if size > self._parts.config.max_model_gib * 2**30:
            cap = f"{self._parts.config.max_model_gib:g} GiB (max_model_gib in node.toml)"
            self._weights.problem = f"version {manifest.header.version} may take {size:,} bytes, more than {cap}"
            self._parts.output.event("declined", self._weights.problem)
            await self._driver.feed(ev.Decline(manifest.artifact))
            return
        self._link.run = manifest.header.run
        await self._weights.announced(manifest)

    async def _recover(self, manifest: Manifest, why: str) -> None:
        """An artifact could not be staged: tell the host, then, once, blame the disk and after it the engine.

        Segments that rotted on disk are fetched again; if all are right, the engine is rebuilt from the store. An
        artifact that fails a second time is left aside: a later snapshot takes its place.
        """
        await self._link.commit_failed(CommitFailed(manifest.header.version, why[:500]))
        if manifest.artifact in self._recovered:
            return
        self._recovered.add(manifest.artifact)
        good = await trio.to_thread.run_sync(self._parts.store.verify, manifest.artifact)
        await self._driver.feed(ev.Retire(manifest.artifact))
        await self._driver.feed(ev.Restored(manifest, good))
        complete = self._parts.store.is_complete(manifest.artifact)
        self._weights.restored(manifest, complete=complete)
        if complete:
            self._weights.rebase()

    async def _keep_house(self) -> None:
        while True:
            await trio.sleep(HOUSEKEEPING_SECONDS)
            for artifact in await trio.to_thread.run_sync(lambda: self._parts.store.prune(now=boottime())):
                self._weights.forget(artifact)
                await self._driver.feed(ev.Retire(artifact))

    # ---- the engine and its work

    async def _work(self) -> None:
        """Run engines until drained: one that dies, or holds wrong weights, is followed by a fresh one."""
        pause = 1.0
        while not self._worker.drained:
            started = boottime()
            try:
                await self._one_engine()
            except* (ChildError, CheckpointError, StoreError) as group:
                self._restarts += 1
                detail = "; ".join(str(error) for error in group.exceptions)
                self._parts.output.event("engine-lost", f"the engine is restarted: {detail}", detail=detail)
                held = self._weights.held
                if held is not None:
                    await self._link.commit_failed(CommitFailed(held.version, detail[:500]))
            pause = 1.0 if boottime() - started > MAX_RESTART_SECONDS else min(2 * pause, MAX_RESTART_SECONDS)
            if not self._worker.drained:
                await trio.sleep(pause)

    async def _one_engine(self) -> None:
        config = self._parts.config
        async with open_engine(
            engine=config.engine,
            device=_device(config.device),
            threads=config.threads or max((os.cpu_count() or 2) - 1, 1),
            max_batch=config.max_batch,
            nice=ENGINE_NICE,
            log=self._parts.home / "engine.log",
        ) as engine:
            self._weights.attach(engine)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._weights.run, engine)
                await self._worker.run(engine)
                nursery.cancel_scope.cancel()

    # ---- what others see

    async def _show(self) -> None:
        last = self._weights.held
        with self._parts.output.live() as show:
            while True:
                await trio.sleep(LIVE_SECONDS)
                held, figures = self._weights.held, self._figures
                if held != last and held is not None:
                    last = held
                    self._parts.output.event("version", f"serving version {held.version}", version=held.version)
                show(f"{figures.state}  step {figures.lease_step}", figures.lease_done, figures.lease_size)

    async def _ask_status(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        fresh = self._trust.is_fresh(boottime())
        return snapshot(self._parts.identity.peer, self._link, self._weights, self._figures, self._driver) | {
            "fresh": fresh,
            "engine_restarts": self._restarts,
            "equivocation": self._evidence.exists(),
        }

    async def _caps(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._driver.change_caps(request.get("up_kib"), request.get("down_kib"))


def _device(wanted: str) -> str:
    """ "auto" becomes cuda where an NVIDIA driver is loaded; torch is not imported here."""
    if wanted != "auto":
        return wanted
    return "cuda" if Path("/proc/driver/nvidia/version").exists() else "cpu"
