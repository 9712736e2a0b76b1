"""`aurora-host run`: everything a swarm host is made of, put together.

    control host (libp2p)   answers.py     joining, freshness, roster, leases, results
    bulk child (TLS)        net/drive.py   segments
    ledger (SQLite)         answers.py     nothing is granted or acknowledged before it is in there
    trainer socket          door.py        publications and rollouts
    control socket                         status, caps

A start aborts what was cut off, offers what is complete again, and replays the ledger into the work pool.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.crypto.roles import RoleKeys
from aurora_p2p.errors import CheckpointError, StaleError
from aurora_p2p.host.answers import Answers, PoolDoor
from aurora_p2p.host.config import HostConfig
from aurora_p2p.host.desk import PublicationDesk
from aurora_p2p.host.door import TrainerDoor
from aurora_p2p.host.keys import load_charter
from aurora_p2p.host.membership import Membership
from aurora_p2p.host.status import snapshot
from aurora_p2p.lease.events import records_of
from aurora_p2p.lease.fleet import LeaseOptions
from aurora_p2p.lease.pool import WorkPool
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.control import serve_control, socket_path
from aurora_p2p.local.output import Output
from aurora_p2p.net.addresses import advertised_bulk, check_cidrs, own_scope
from aurora_p2p.net.drive import ExchangeDriver, Notice, open_exchange
from aurora_p2p.net.host import ControlHost, open_control_host
from aurora_p2p.net.rendezvous import keep_advertised
from aurora_p2p.store.ledger import Ledger
from aurora_p2p.store.schema import FloorSeen
from aurora_p2p.swarm.events import Announced, Equivocated, Refused, Retire, RosterChanged, TrustChanged
from aurora_p2p.swarm.roster import open_roster
from aurora_p2p.types import Epoch, Generation, Seq
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.control import CONTROL_PROTOCOL, LEASE_PROTOCOL, RESULT_PROTOCOL, Request
from aurora_p2p.wire.names import head_topic, namespace_of
from aurora_p2p.wire.ticket import Ticket
from aurora_p2p.wire.trainer import Published
from aurora_p2p.wire.trust import Charter, Delegation, Floor, PeerRecord

HOUSEKEEPING_SECONDS = 5.0
LIVE_SECONDS = 0.5
EPOCHS_PER_START = 1 << 20
"""Roster epochs of one start of the host: the ledger counts starts, so epochs grow across restarts unwritten."""


def run_host(home: Path, config: HostConfig, *, as_json: bool) -> None:
    """Run until SIGTERM or Ctrl-C. Raises AuroraError."""
    trio.run(_main, home, config, Output(as_json=as_json))


async def _main(home: Path, config: HostConfig, output: Output) -> None:
    check_cidrs(config.local)
    charter, delegation = load_charter(home)
    keys = RoleKeys.load(home)
    ledger = Ledger.open(home / "ledger.sqlite")
    try:
        with ArtifactStore(home / "artifacts", int(config.quota_gib * 2**30)) as store:
            await _serve(_Parts(home, config, output, charter, delegation, keys, ledger, store))
    finally:
        ledger.close()


@dataclass(frozen=True, slots=True)
class _Parts:
    home: Path
    config: HostConfig
    output: Output
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
        self._members = Membership(swarm, keys.admit, parts.delegation.generation, first_epoch)
        self._desk = PublicationDesk(swarm, keys.publish, parts.ledger, parts.store, driver)
        self._pool_door = PoolDoor(self._pool, parts.ledger)
        self._answers = Answers(
            swarm, keys, parts.charter, parts.delegation.generation, self._members, self._pool_door, parts.output
        )
        self._trainer = TrainerDoor(swarm, parts.ledger.run, config.segment_bytes, self._desk, self._pool_door)
        self._answers.newest = lambda: self._desk.newest
        self._answers.roster_changed = self._roster_changed
        self._trainer.on_published = self._published
        self._trainer.status = self._status
        self._roster_due, self._hint_due = trio.Event(), trio.Event()

    async def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run)
                async for _ in signals:
                    break
                self._answers.draining = True
                self._parts.output.event("stopping", "stopping: nodes keep serving what they hold")
                nursery.cancel_scope.cancel()

    async def _run(self) -> None:
        """Every task of the host, until cancelled."""
        await self._start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pool_door.run)
            nursery.start_soon(self._watch_notices)
            nursery.start_soon(self._renew_rosters)
            nursery.start_soon(self._send_hints)
            nursery.start_soon(self._keep_house)
            nursery.start_soon(self._show)
            await nursery.start(self._trainer.serve, socket_path(self._parts.home, "trainer"))
            await nursery.start(
                serve_control,
                socket_path(self._parts.home, "control"),
                {"status": self._ask_status, "caps": self._caps},
            )
            for protocol in (CONTROL_PROTOCOL, LEASE_PROTOCOL, RESULT_PROTOCOL):
                self._control.serve(protocol, Request, self._answers.answer)  # type: ignore[arg-type]
            for address in self._parts.config.bootstraps:
                nursery.start_soon(keep_advertised, self._control, address, namespace_of(self._parts.delegation.swarm))
            self._say_ready()
            await self._publish_checkpoint()

    async def _start(self) -> None:
        parts, driver = self._parts, self._driver
        delegation = parts.delegation
        await driver.feed(TrustChanged(delegation.publish, frozenset(delegation.hosts), delegation.generation))
        restored = self._pool.restore(parts.ledger.restore(), now=boottime())
        await parts.ledger.commit(records_of(restored))
        found = await trio.to_thread.run_sync(lambda: parts.store.load(now=boottime()))
        await self._desk.restore(found)
        record = PeerRecord(
            swarm=delegation.swarm,
            peer=parts.keys.node.peer,
            seq=parts.ledger.epoch,
            control=tuple(address.rpartition("/p2p/")[0] for address in self._control.addresses()),
            bulk=advertised_bulk(parts.config.advertise, self._control.addresses(), driver.port),
            up_kbps=int(parts.config.up_kib_per_second * 8.192),
        )
        self._members.add_self(parts.keys.node, record, now=boottime())
        await self._renew_roster()

    # ---- roster and HEAD hints

    def _roster_changed(self) -> None:
        self._roster_due.set()

    async def _renew_rosters(self) -> None:
        """A changed roster gets a new epoch, but never while an artifact is in flight from here."""
        while True:
            await self._roster_due.wait()
            self._roster_due = trio.Event()
            while self._desk.busy:
                await trio.sleep(0.05)
            await self._renew_roster()

    async def _renew_roster(self) -> None:
        if not self._members.renew():
            return
        delegation = self._parts.delegation
        view = open_roster(self._members.signed, swarm=delegation.swarm, admit=delegation.admit)
        await self._driver.feed(RosterChanged(view))
        self._hint_due.set()

    async def _send_hints(self) -> None:
        topic = head_topic(self._parts.delegation.swarm)
        while True:
            await self._hint_due.wait()
            self._hint_due = trio.Event()
            head = self._answers.head(b"")
            if head is not None:
                await self._control.publish(topic, encode(head))

    def _published(self, published: Published, kind: str) -> None:
        self._hint_due.set()
        self._parts.output.event(
            "published",
            f"version {published.version}: {kind} of {published.length:,} bytes in {published.segments} segments",
            version=published.version,
            kind=kind,
            bytes=published.length,
            segments=published.segments,
        )

    # ---- beside

    async def _watch_notices(self) -> None:
        async for notice in self._driver.notices:
            if isinstance(notice, Announced) and self._desk.is_foreign(notice.manifest):
                await self._stop_restored(notice.manifest)
            self._notice(notice)

    async def _stop_restored(self, manifest: Manifest) -> None:
        """Our key has signed what this home does not know: adopt the number, and go on only under a new generation."""
        burnt = Generation(self._parts.delegation.generation + 1)
        await self._parts.ledger.commit([FloorSeen(burnt, manifest.header.seq)])
        raise StaleError(
            f"nodes hold publication {manifest.header.seq}, which this home does not know: it was restored from a "
            "backup, or runs twice",
            hint="sign a new generation: aurora-host delegate --root root.key",
        )

    def _notice(self, notice: Notice) -> None:
        match notice:
            case Refused(peer, reason):
                self._parts.output.event("refused", f"refused {peer}: {reason}", peer=peer, reason=reason)
            case Equivocated():
                self._parts.output.event("equivocation", "another process publishes with this swarm's key: stop one")

    async def _show(self) -> None:
        """The live line: the oldest step that is not complete."""
        with self._parts.output.live() as show:
            while True:
                await trio.sleep(LIVE_SECONDS)
                version = self._desk.newest.version if self._desk.newest else -1
                steps = self._pool.status(now=boottime()).steps
                step = next((step for step in steps if step.admitted < step.total), None)
                text = f"version {version}  {len(self._members.peers) - 1} nodes"
                if step is None:
                    show(text, 0, 0)
                else:
                    show(f"{text}  step {step.step}: samples admitted", step.admitted, step.total)

    async def _keep_house(self) -> None:
        while True:
            await trio.sleep(HOUSEKEEPING_SECONDS)
            self._members.seen(self._driver.linked, now=boottime())
            gone = self._members.expire(now=boottime())
            for peer in gone:
                self._parts.output.event("left", f"node {peer} is gone", peer=peer)
            if gone:
                self._roster_changed()
            for artifact in await trio.to_thread.run_sync(lambda: self._parts.store.prune(now=boottime())):
                await self._driver.feed(Retire(artifact))

    async def _publish_checkpoint(self) -> None:
        """Version 0 from the configured folder, by the same door as any trainer; nothing to do after a restart."""
        folder = self._parts.config.checkpoint
        if not folder or self._desk.newest is not None:
            return
        socket = socket_path(self._parts.home, "trainer")
        self._parts.output.event("publishing", f"publishing version 0 from {folder}")
        command = [sys.executable, "-m", "aurora_p2p.train.publish", folder, "--socket", str(socket)]
        result = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        if result.returncode:
            lines = result.stderr.decode(errors="replace").strip().splitlines()
            reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
            raise CheckpointError(
                f"version 0 could not be published: {reason or lines[-1:]}",
                hint="`checkpoint` in run.toml must name a folder with config.json and the *.safetensors it describes",
            )

    def _say_ready(self) -> None:
        config, swarm = self._parts.config, self._parts.delegation.swarm
        seq = self._desk.newest.seq if self._desk.newest else Seq(0)
        scope = tuple(sorted({*config.local, *own_scope(self._control.addresses())}))
        ticket = Ticket(
            swarm,
            config.bootstraps,
            self._control.addresses()[:4],
            Floor(self._parts.delegation.generation, seq),
            scope,
        )
        self._parts.output.event("ready", f"swarm   {swarm}", swarm=swarm, ticket=str(ticket))
        if not self._parts.output.as_json:
            print(f"ticket  {ticket}\njoin    aurora-node join {ticket}", flush=True)

    # ---- control socket

    def _status(self) -> dict[str, Any]:
        return snapshot(
            self._parts.delegation, self._parts.ledger.run, self._desk, self._members, self._pool, self._driver
        )

    async def _ask_status(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._status()

    async def _caps(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._driver.change_caps(request.get("up_kib"), request.get("down_kib"))
