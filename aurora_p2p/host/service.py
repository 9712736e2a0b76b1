"""`aurora-host run`: everything a swarm host is made of, put together.

    control host (libp2p)   answers.py     joining, freshness, roster, leases, results
    bulk child (TLS)        net/drive.py   segments
    fold child              upkeep.py      squashed deltas and snapshots out of what is stored
    ledger (SQLite)         answers.py     nothing is granted or acknowledged before it is in there
    trainer socket          door.py        publications and rollouts
    control socket, screen  controls.py    status, why, caps, pause, resume, quit

    RUNNING --SIGTERM, Ctrl-C, quit--> DRAINING: no new leases --live ones end, or one of the three again--> gone

A start aborts what was cut off, offers what is complete again, and replays the ledger into the work pool.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.crypto.roles import RoleKeys
from aurora_p2p.errors import StaleError
from aurora_p2p.host.answers import Answers, PoolDoor
from aurora_p2p.host.checkpoint import publish_checkpoint
from aurora_p2p.host.config import HostConfig
from aurora_p2p.host.controls import Controls
from aurora_p2p.host.desk import PublicationDesk
from aurora_p2p.host.door import TrainerDoor
from aurora_p2p.host.journal import Journal
from aurora_p2p.host.keys import load_charter
from aurora_p2p.host.membership import Membership
from aurora_p2p.host.metrics import HOST_METRICS, HostMeter
from aurora_p2p.host.publication import Newest
from aurora_p2p.host.rosters import Rosters
from aurora_p2p.host.screen import show_screen
from aurora_p2p.host.status import Rooms, snapshot
from aurora_p2p.host.survey import Survey, keep_surveyed, read_pins
from aurora_p2p.host.upkeep import Upkeep
from aurora_p2p.host.why import why_step
from aurora_p2p.lease.events import Effect, Event, Forget, VersionPublished, records_of
from aurora_p2p.lease.fleet import LeaseOptions
from aurora_p2p.lease.pool import WorkPool
from aurora_p2p.local import hangup
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.control import serve_control, socket_path
from aurora_p2p.local.log import EventLog, log_path, trim
from aurora_p2p.local.metrics import serve_metrics
from aurora_p2p.local.output import Output
from aurora_p2p.net.addresses import advertised_bulk, check_cidrs, own_scope
from aurora_p2p.net.drive import ExchangeDriver, open_exchange
from aurora_p2p.net.host import ControlHost, open_control_host
from aurora_p2p.net.rendezvous import keep_advertised
from aurora_p2p.store.ledger import Ledger
from aurora_p2p.store.schema import FloorSeen
from aurora_p2p.swarm.events import Announced, Retire, TrustChanged
from aurora_p2p.types import Epoch, Generation, PeerId, Seq, Version
from aurora_p2p.wire.control import CONTROL_PROTOCOL, LEASE_PROTOCOL, RESULT_PROTOCOL, Request
from aurora_p2p.wire.names import namespace_of
from aurora_p2p.wire.ticket import Ticket
from aurora_p2p.wire.trainer import Published, Waiting
from aurora_p2p.wire.trust import Charter, Delegation, Floor, PeerRecord

HOUSEKEEPING_SECONDS = 5.0
LOG_LINES = 40
"""Of the log in a status: what a screen has room for."""
EPOCHS_PER_START = 1 << 20
"""Roster epochs of one start of the host: the ledger counts starts, so epochs grow across restarts unwritten."""


def run_host(home: Path, config: HostConfig, *, as_json: bool, plain: bool = False) -> None:
    """Run until SIGTERM, Ctrl-C or `quit`; plain: no screen, also on a terminal. Raises AuroraError."""
    with EventLog.open(log_path(home, "host")) as log:
        trio.run(_main, home, config, Output(as_json=as_json, log=log), plain)


async def _main(home: Path, config: HostConfig, output: Output, plain: bool) -> None:
    check_cidrs(config.local)
    read_pins(config.regions)
    charter, delegation = load_charter(home)
    keys = RoleKeys.load(home)
    ledger = Ledger.open(home / "ledger.sqlite")
    try:
        with ArtifactStore(home / "artifacts", int(config.quota_gib * 2**30)) as store:
            await _serve(_Parts(home, config, output, plain, charter, delegation, keys, ledger, store))
    finally:
        ledger.close()


@dataclass(frozen=True, slots=True)
class _Parts:
    home: Path
    config: HostConfig
    output: Output
    plain: bool
    charter: Charter
    delegation: Delegation
    keys: RoleKeys
    ledger: Ledger
    store: ArtifactStore


async def _serve(parts: _Parts) -> None:
    config, keys = parts.config, parts.keys
    if parts.ledger.generation > parts.delegation.generation:
        raise StaleError(
            f"this home was restored from a backup: generation {parts.ledger.generation} has been used since",
            hint="sign a new one: aurora-host delegate --root root.key",
        )
    await parts.ledger.commit([FloorSeen(parts.delegation.generation, Seq(0))])
    async with (
        open_control_host(keys.node, config.listen) as control,
        open_exchange(
            identity=keys.node,
            swarm=parts.delegation.swarm,
            store=parts.store,
            spool=parts.home / "spool",
            listen=config.bulk_listen,
            up_rate=int(config.up_kib_per_second * 1024),
            down_rate=int(config.down_kib_per_second * 1024),
            local=config.local,
            log=parts.home / "bulk.log",
        ) as driver,
    ):
        await _Host(parts, control, driver).run()


class _Host:
    """The running host: owns the tasks, holds no rule of its own."""

    def __init__(self, parts: _Parts, control: ControlHost, driver: ExchangeDriver) -> None:
        self._parts, self._control, self._driver = parts, control, driver
        config, keys, swarm = parts.config, parts.keys, parts.delegation.swarm
        options = LeaseOptions(
            max_lag=config.max_lag,
            min_lease_samples=min(8, config.max_lease_samples),
            max_lease_samples=config.max_lease_samples,
            min_lease_seconds=min(10.0, config.lease_seconds),
            max_lease_seconds=config.lease_seconds,
        )
        self._pool = WorkPool(parts.ledger.run, parts.ledger.secret, parts.ledger.epoch, options)
        first_epoch = Epoch(parts.ledger.epoch * EPOCHS_PER_START)
        self._scope = tuple(sorted({*config.local, *own_scope(control.addresses())}))
        self._members = Membership(swarm, keys.admit, parts.delegation.generation, first_epoch, self._scope)
        self._survey = Survey(keys.node.peer, read_pins(config.regions))
        self._desk = PublicationDesk(swarm, keys.publish, parts.ledger, parts.store, driver)
        self._pool_door = PoolDoor(self._pool, parts.ledger)
        self._meter, self._journal = HostMeter(parts.store.root), Journal(parts.output, parts.ledger.run)
        self._answers = Answers(
            swarm, keys, parts.charter, parts.delegation.generation, self._members, self._pool_door, parts.output
        )
        self._trainer = TrainerDoor(swarm, parts.ledger.run, config.segment_bytes, self._desk, self._pool_door)
        self._upkeep = Upkeep(
            self._desk,
            parts.store,
            config.segment_bytes,
            int(config.rewrite_gib_per_hour * 2**30),
            parts.output,
            parts.home / "fold.log",
        )
        self._rosters = Rosters(parts.delegation, self._members, self._desk, driver)
        self._controls = Controls(self._answers, self._pool_door, driver, parts.output, self._status)
        self._started, self._ticket = boottime(), ""
        self._connect()

    def _connect(self) -> None:
        """Who tells whom."""
        self._pool_door.happened = self._happened
        self._parts.ledger.on_wait = self._journal.disk_changed
        self._answers.newest = lambda: self._desk.newest
        self._answers.roster_changed = self._rosters.changed
        self._answers.ip_of = self._control.ip_of
        self._answers.take_distances = lambda peer, said: self._survey.report(peer, said, now=boottime())
        self._rosters.head = lambda: self._answers.head(b"")
        self._trainer.on_published = self._published
        self._upkeep.standings = lambda: self._answers.progress.standings(now=boottime())
        self._upkeep.published = self._published_aside
        self._trainer.on_step = self._journal.step_done
        self._trainer.status = self._status
        self._trainer.explain = self._explain

    async def run(self) -> None:
        """Until drained after SIGTERM, Ctrl-C, a closed terminal or `quit`."""
        with trio.open_signal_receiver(*hangup.stop_signals()) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run)
                nursery.start_soon(self._stop_when_drained, nursery.cancel_scope)
                async for number in signals:
                    hangup.heard(number)
                    self._controls.stop()

    async def _stop_when_drained(self, everything: trio.CancelScope) -> None:
        await self._controls.wait_until_drained()
        self._parts.output.event("stopping", "stopping: nodes keep serving what they hold")
        everything.cancel()

    async def _run(self) -> None:
        """Every task of the host, until cancelled."""
        await self._start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pool_door.run)
            nursery.start_soon(self._watch_notices)
            nursery.start_soon(self._rosters.keep_renewed)
            nursery.start_soon(self._rosters.send_hints, self._control)
            nursery.start_soon(keep_surveyed, self._survey, self._distances, self._move)
            nursery.start_soon(self._keep_house)
            nursery.start_soon(self._upkeep.run)
            nursery.start_soon(self._meter.lag.run)
            await nursery.start(self._trainer.serve, socket_path(self._parts.home, "trainer"))
            commands = self._controls.commands()
            await nursery.start(serve_control, socket_path(self._parts.home, "control"), commands)
            for protocol in (CONTROL_PROTOCOL, LEASE_PROTOCOL, RESULT_PROTOCOL):
                self._control.serve(protocol, Request, self._answers.answer)  # type: ignore[arg-type]
            for address in self._parts.config.bootstraps:
                nursery.start_soon(keep_advertised, self._control, address, namespace_of(self._parts.delegation.swarm))
            self._say_ready()
            await nursery.start(
                serve_metrics,
                self._parts.config.metrics_listen,
                HOST_METRICS,
                self._controls.status,
                self._parts.output,
            )
            nursery.start_soon(partial(show_screen, commands, self._parts.output, plain=self._parts.plain))
            await self._publish_first()

    async def _start(self) -> None:
        parts, driver = self._parts, self._driver
        delegation = parts.delegation
        await driver.feed(TrustChanged(delegation.publish, frozenset(delegation.hosts), delegation.generation))
        restored = self._pool.restore(parts.ledger.restore(), now=boottime())
        await parts.ledger.commit(records_of(restored))
        found = await trio.to_thread.run_sync(lambda: parts.store.load(now=boottime()))
        await self._desk.restore(found, Version(self._pool.book.newest + 1))
        record = PeerRecord(
            swarm=delegation.swarm,
            peer=parts.keys.node.peer,
            seq=parts.ledger.epoch,
            control=tuple(address.rpartition("/p2p/")[0] for address in self._control.addresses()),
            bulk=advertised_bulk(parts.config.advertise, self._control.addresses(), driver.port),
            up_kbps=int(parts.config.up_kib_per_second * 8.192),
        )
        self._members.add_self(parts.keys.node, record, now=boottime())
        await self._rosters.renew()

    # ---- what happens

    def _happened(self, event: Event | None, effects: list[Effect]) -> None:
        self._meter.happened(event, effects, now=boottime())
        self._journal.happened(event, effects)

    def _published(self, published: Published, kind: str) -> None:
        self._rosters.hint()
        self._meter.published(now=boottime())
        self._journal.published(published, kind)

    async def _published_aside(self, done: Newest) -> None:
        """Whoever comes by this artifact holds the version as well."""
        await self._pool_door.handle(VersionPublished(done.version, done.manifest_hash, done.digest))

    # ---- regions

    def _distances(self) -> tuple[Mapping[PeerId, float], Collection[PeerId]]:
        return self._driver.rtts, self._members.peers

    def _move(self, regions: Mapping[PeerId, int]) -> bool:
        moved = self._members.move(regions)
        if moved:
            self._rosters.changed()
        return moved

    # ---- beside

    async def _watch_notices(self) -> None:
        async for notice in self._driver.notices:
            if isinstance(notice, Announced) and self._desk.is_foreign(notice.manifest):
                await self._stop_restored(notice.manifest)
            self._journal.notice(notice)

    async def _stop_restored(self, manifest: Manifest) -> None:
        """Our key has signed what this home does not know: adopt the number, and go on only under a new generation."""
        burnt = Generation(self._parts.delegation.generation + 1)
        await self._parts.ledger.commit([FloorSeen(burnt, manifest.header.seq)])
        raise StaleError(
            f"nodes hold publication {manifest.header.seq}, which this home does not know: it was restored from a "
            "backup, or runs twice",
            hint="sign a new generation: aurora-host delegate --root root.key",
        )

    async def _keep_house(self) -> None:
        while True:
            await trio.sleep(HOUSEKEEPING_SECONDS)
            for name in ("bulk.log", "fold.log"):
                trim(self._parts.home / name)
            self._members.seen(self._driver.linked, now=boottime())
            gone = self._members.expire(now=boottime())
            for peer in gone:
                self._parts.output.event("left", f"node {peer} is gone", peer=peer)
                await self._pool_door.handle(Forget(peer))
            if gone:
                self._answers.progress.retain(self._members.peers)
                self._rosters.changed()
            for artifact in await trio.to_thread.run_sync(lambda: self._parts.store.prune(now=boottime())):
                await self._driver.feed(Retire(artifact))

    async def _publish_first(self) -> None:
        """Version 0 from the configured folder; nothing to do after a restart."""
        folder = self._parts.config.checkpoint
        if folder and self._desk.newest is None:
            self._parts.output.event("publishing", f"publishing version 0 from {folder}")
            await publish_checkpoint(folder, socket_path(self._parts.home, "trainer"))

    def _say_ready(self) -> None:
        config, swarm = self._parts.config, self._parts.delegation.swarm
        seq = self._desk.newest.seq if self._desk.newest else Seq(0)
        ticket = Ticket(
            swarm,
            config.bootstraps,
            self._control.addresses()[:4],
            Floor(self._parts.delegation.generation, seq),
            self._scope,
        )
        self._ticket = str(ticket)
        self._parts.output.event("ready", f"swarm   {swarm}", swarm=swarm, ticket=self._ticket)
        if not self._parts.output.as_json:
            print(f"ticket  {ticket}\njoin    aurora-node join {ticket}", flush=True)

    # ---- what others see

    def _status(self) -> dict[str, Any]:
        store, now = self._parts.store, boottime()
        return {
            **snapshot(self._rooms(), now=now),
            **self._meter.status(store.reserved_bytes, store.quota_bytes, now=now),
            "aborts": self._desk.aborted,
            "publication_waits": self._desk.waits,
            "folds": self._upkeep.status(),
            "survey": self._survey.status(),
            "ledger": self._parts.ledger.status(),
            "uptime_seconds": now - self._started,
            "ticket": self._ticket,
            "paused": self._answers.paused,
            "draining": self._answers.draining,
            "equivocation": self._journal.equivocated,
            "log": self._parts.output.tail(LOG_LINES),
        }

    def _rooms(self) -> Rooms:
        return Rooms(
            delegation=self._parts.delegation,
            run=self._parts.ledger.run,
            desk=self._desk,
            members=self._members,
            pool=self._pool,
            driver=self._driver,
            progress=self._answers.progress,
            steps=self._trainer.steps,
        )

    def _explain(self, waiting: Waiting) -> str:
        return why_step(self._status(), waiting.step) or waiting.why
