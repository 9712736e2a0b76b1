"""`aurora-node join`: everything a node is made of, put together.

    control host (libp2p)   link.py        joins, stays fresh, asks for leases, submits
    bulk child (TLS)        net/drive.py   receives and re-serves segments
    engine child            engines.py     decodes, stages, commits, generates
    following.py, weights.py, work.py      whom to believe, which version, which lease
    guest.py                               whether this machine works now
    control socket, screen                 status, why, caps, pause, resume, quit

    JOINING (until a host answers) -> FOLLOWING -> (SIGTERM, quit) DRAINING: leases handed back, results sent -> gone

A child that dies is replaced and, for the engine, rebuilt from the store; its leases go back. Losing the host or the
bootstrap stops nothing: the node finishes and serves what it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import trio

from aurora_node.config import DRAIN_SECONDS, NodeConfig
from aurora_node.engines import Engines, bulk_limits, device_of
from aurora_node.folds import Folds
from aurora_node.following import Following
from aurora_node.gpu import open_gpu
from aurora_node.guest import Guest
from aurora_node.joining import join_patiently
from aurora_node.limits import Room, too_large
from aurora_node.link import HostLink
from aurora_node.measure import Meter, total_ram
from aurora_node.metrics import NODE_METRICS, NodeMeter
from aurora_node.parts import Parts, open_parts
from aurora_node.presence import Stance
from aurora_node.rebuilds import Rebuilds
from aurora_node.reporting import distances_of, keep_measuring, keep_reporting, progress_of
from aurora_node.screen import show_screen
from aurora_node.status import snapshot
from aurora_node.weights import Weights
from aurora_node.why import why
from aurora_node.work import LeaseWorker, WorkFigures
from aurora_p2p.local import hangup
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.control import Handler, serve_control, socket_path
from aurora_p2p.local.log import EventLog, log_path
from aurora_p2p.local.metrics import serve_metrics
from aurora_p2p.local.output import Output
from aurora_p2p.net.drive import ExchangeDriver, open_exchange
from aurora_p2p.net.host import ControlHost, open_control_host
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.freshness import Trust
from aurora_p2p.types import ArtifactId
from aurora_p2p.wire.control import Distances
from aurora_p2p.wire.ticket import Ticket
from aurora_p2p.wire.trust import PeerRecord

LIVE_SECONDS = 0.5
SHOWN_EVENTS = 50
"""Of the log, in a status: more than a screen has room for."""
CAPS_LAST = "until the restart; up_kib_per_second and down_kib_per_second in node.toml are for good"


def run_node(home: Path, config: NodeConfig, ticket: Ticket, *, as_json: bool, plain: bool = False) -> None:
    """Join and work until SIGTERM, Ctrl-C or `quit`. plain: no screen, also on a terminal. Raises AuroraError."""
    with EventLog.open(log_path(home, "node")) as log:
        output = Output(as_json=as_json, log=log)
        with open_parts(home, config, ticket, output) as parts:
            trio.run(_serve, parts, plain)


async def _serve(parts: Parts, plain: bool) -> None:
    config = parts.config
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
            limits=bulk_limits(config),
        ) as driver,
    ):
        await _Node(parts, control, driver, parts.trust()).run(plain=plain)


class _Node:
    """The running daemon: owns the tasks, holds no rule of its own."""

    def __init__(self, parts: Parts, control: ControlHost, driver: ExchangeDriver, trust: Trust) -> None:
        config, output = parts.config, parts.output
        self._parts, self._control, self._driver, self._trust = parts, control, driver, trust
        self._caps = {"up_kib": config.up_kib_per_second, "down_kib": config.down_kib_per_second}
        self._link = HostLink(parts.identity, control, parts.place, parts.memory, trust)
        self._figures = WorkFigures()
        self._gpu = open_gpu(device_of(config.device)) if device_of(config.device) != "cpu" else None
        self._weights = Weights(parts.store, self._accept, config.audit_every, self._room(), output.note)
        self._worker = LeaseWorker(parts.identity, config, self._link, self._weights, self._figures, output.note)
        self._engines = Engines(config, parts.home, self._weights, self._worker, self._link, output)
        gpu_total = (self._gpu.memory() or (None, None))[0] if self._gpu else None
        self._following = Following(
            parts,
            control,
            driver,
            self._link,
            self._weights,
            lambda manifest: too_large(
                manifest.header, config, device_of(config.device), total_ram=total_ram(), gpu_total=gpu_total
            ),
        )
        self._following.on_contradicted = self._worker.stand_still
        self._weights.decline = lambda artifact: self._driver.feed(ev.Decline(artifact))
        self._weights.retired = lambda artifact: self._driver.feed(ev.Retire(artifact))
        self._folds = self._open_folds()
        self._rebuilds = self._open_rebuilds()
        meter = Meter(parts.folder, self._gpu if config.pause_when_gpu_busy else None)
        self._guest = Guest(parts.home, parts.policy, meter.measure, output)
        self._meter = NodeMeter(parts.store.root)
        self._stopping, self._stance_told = trio.Event(), trio.Event()
        self._stop_now = False
        self._recorded: tuple[tuple[str, ...], PeerRecord] | None = None

    def _open_folds(self) -> Folds:
        parts, weights = self._parts, self._weights
        rate = int(parts.config.rewrite_gib_per_hour * 2**30)
        folds = Folds(parts.store, parts.identity, rate, parts.policy.min_free_disk, parts.home / "fold.log")
        folds.publisher = lambda: self._trust.publish if self._trust.charter is not None else None
        folds.own, folds.note = lambda: weights.own, parts.output.note
        folds.done = partial(weights.restored, complete=True, own=True)
        return folds

    def _open_rebuilds(self) -> Rebuilds:
        parts, weights, trust = self._parts, self._weights, self._trust
        rebuilds = Rebuilds(parts.identity.peer, parts.store, self._driver, self._folds)
        rebuilds.newest, rebuilds.note = lambda: weights.newest_snapshot, parts.output.note
        rebuilds.pressed = lambda: weights.lacks_room
        rebuilds.members = lambda: trust.roster.peers.keys() - trust.hosts if trust.roster else ()
        return rebuilds

    def _room(self) -> Room:
        config = self._parts.config
        return Room(
            folder=self._parts.folder,
            floor=self._parts.policy.min_free_disk,
            engine=config.engine,
            device=device_of(config.device),
            engine_bytes=lambda: self._engines.memory,
        )

    async def run(self, *, plain: bool) -> None:
        """Join, then until SIGTERM, Ctrl-C, a closed terminal or `quit`."""
        output = self._parts.output
        commands = self._commands()
        with trio.open_signal_receiver(*hangup.stop_signals()) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen_for_signals, signals)
                nursery.start_soon(self._stop, nursery.cancel_scope)
                await nursery.start(serve_control, socket_path(self._parts.home, "control"), commands)
                nursery.start_soon(self._meter.lag.run)
                await nursery.start(
                    serve_metrics, self._parts.config.metrics_listen, NODE_METRICS, self._ask_status, output
                )
                self._follow_stance()
                await join_patiently(self._link, self._record, output)
                output.event(
                    "joined",
                    f"joined {self._parts.ticket.swarm}; members see each other's addresses, and what is trained on",
                    peer=self._parts.identity.peer,
                    swarm=self._parts.ticket.swarm,
                    host=self._link.host,
                )
                await self._following.begin()
                nursery.start_soon(self._following.run)
                nursery.start_soon(self._link.stay_fresh, self._record)
                nursery.start_soon(self._worker.submissions.run)
                nursery.start_soon(self._guest.run)
                nursery.start_soon(self._folds.run)
                nursery.start_soon(self._rebuilds.run)
                nursery.start_soon(self._keep_caps)
                nursery.start_soon(keep_reporting, self._progress, self._link.report)
                nursery.start_soon(keep_measuring, self._distances, self._link.report)
                nursery.start_soon(self._tell_versions)
                nursery.start_soon(partial(show_screen, commands, output, plain=plain))
                await self._engines.run()
                await self._worker.submissions.wait_until_sent()
                nursery.cancel_scope.cancel()

    def _record(self) -> PeerRecord:
        """How others reach this node; a new one when its addresses have changed."""
        addresses = self._control.addresses()
        if self._recorded is None or self._recorded[0] != addresses:
            self._recorded = addresses, self._parts.record(addresses, self._driver.port)
        return self._recorded[1]

    # ---- stopping

    async def _listen_for_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            hangup.heard(number)
            self._stop_now = self._stopping.is_set()
            self._stopping.set()

    async def _stop(self, everything: trio.CancelScope) -> None:
        await self._stopping.wait()
        self._parts.output.event("draining", "stopping: handing leases back" if self._link.host else "stopping")
        self._worker.drain()
        self._engines.stop()
        give_up = boottime() + DRAIN_SECONDS
        # Without a host there is nobody to hand anything back to; a second signal or `quit` waits for nothing.
        while self._link.host is not None and not self._stop_now and boottime() < give_up:
            self._stopping = trio.Event()
            with trio.move_on_after(give_up - boottime()):
                await self._stopping.wait()
                self._stop_now = True
        everything.cancel()

    # ---- what the owner's rules mean

    def _follow_stance(self) -> None:
        self._guest.follow(self._worker.stand)
        self._guest.follow(self._engines.stand)
        self._guest.follow(self._folds.stand)
        self._guest.follow(self._carry_out)

    def _carry_out(self, stance: Stance) -> None:
        self._driver.hold_fetching(not stance.fetching)
        self._stance_told.set()

    async def _keep_caps(self) -> None:
        """The owner's caps, or those for a pause while there is one."""
        while True:
            self._stance_told = trio.Event()
            await self._driver.change_caps(**self._caps_now())
            await self._stance_told.wait()

    def _caps_now(self) -> dict[str, float]:
        config, working = self._parts.config, self._guest.stance.working
        paused = {"up_kib": config.paused_up_kib_per_second, "down_kib": config.paused_down_kib_per_second}
        return {name: rate if working else paused[name] or rate for name, rate in self._caps.items()}

    # ---- what others see

    async def _accept(self, artifact: ArtifactId) -> None:
        await self._driver.feed(ev.Accept(artifact))

    def _progress(self) -> Any:
        return progress_of(self._weights, self._figures, self._driver)

    def _distances(self) -> Distances:
        return distances_of(self._driver.rtts, self._trust.hosts)

    async def _tell_versions(self) -> None:
        last = self._weights.held
        while True:
            await trio.sleep(LIVE_SECONDS)
            held = self._weights.held
            if held != last and held is not None:
                last = held
                self._parts.output.event("version", f"serving version {held.version}", version=held.version)

    # ---- control commands

    def _commands(self) -> dict[str, Handler]:
        return {
            "status": self._ask_status,
            "why": self._ask_why,
            "caps": self._change_caps,
            "pause": self._guest.pause,
            "resume": self._guest.resume,
            "quit": self._quit,
        }

    async def _ask_status(self, _request: object = None) -> Mapping[str, Any]:
        return {
            **snapshot(self._parts.identity.peer, self._link, self._weights, self._figures, self._driver),
            "fresh": self._trust.is_fresh(boottime()),
            "presence": self._guest.stance.status(),
            "engine": self._parts.config.engine,
            "engine_pid": self._engines.pid,
            "engine_bytes": self._engines.memory,
            "engine_restarts": self._engines.restarts,
            "equivocation": self._following.contradicted,
            "folds": {"folded": self._folds.folded, **self._rebuilds.status()},
            "draining": self._worker.drained,
            "log": self._parts.output.tail(SHOWN_EVENTS),
            **self._meter.status(self._parts.store.reserved_bytes, self._parts.store.quota_bytes),
        }

    async def _ask_why(self, _request: object = None) -> Mapping[str, Any]:
        return {"why": why(await self._ask_status())}

    async def _change_caps(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = {name: request[name] for name in self._caps if request.get(name) is not None}
        answer = await self._driver.change_caps(**asked)  # refuses what is no rate
        self._caps.update(asked)
        await self._driver.change_caps(**self._caps_now())
        return {**answer, "lasts": CAPS_LAST}

    async def _quit(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Drain as SIGTERM does; asked a second time, or with "now", end at once."""
        self._stop_now = bool(request.get("now")) or self._stopping.is_set()
        self._stopping.set()
        return {"draining": True, "text": "draining: what is not finished is handed back"}
