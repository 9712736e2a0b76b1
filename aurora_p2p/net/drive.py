"""The driver of the exchange machine: joins it to the bulk child, the store and the clock.

    bulk child  --events-->  machine  --effects-->  commands to the child, jobs for the store, notices for the daemon

Every event goes through `_apply`, which never waits: machine, dialler and counters change in one step. Whoever brought
the event then waits for room in what it filled. The one timer waits for the machine's next deadline, at most 1 s (the
cap notices a suspend). A full disk pauses fetching for PAUSE_SECONDS and leaves uploading alone. A bulk child that
dies is started again on the same port; the machine sees its links go down.

The daemon must take `notices`: while MAX_NOTICES of them wait, nothing is read from the links.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import trio

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import ShapeError, StoreError, UsageError
from aurora_p2p.local.child import Limits
from aurora_p2p.local.clock import boottime
from aurora_p2p.net.addresses import split_bulk
from aurora_p2p.net.backlog import Backlog
from aurora_p2p.net.gate import Gate
from aurora_p2p.net.keeper import DiskRefused, Finish, Finished, Keeper, Outcome, Remove
from aurora_p2p.net.plane import DataPlane
from aurora_p2p.net.traffic import Traffic
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.exchange import Exchange, ExchangeConfig
from aurora_p2p.types import ArtifactId, PeerId, SwarmId
from aurora_p2p.wire import bulk
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.exchange import ExchangeFrame, SegmentData

MAX_WAIT_SECONDS = 1.0
LOOK_SECONDS = 0.004
"""Between two looks at the machine's deadlines: the events of a burst share one."""
MAX_NOTICES = 256
OBSERVE_SECONDS = 1.0
"""Between two looks at the counters, for rates: no longer than MAX_WAIT_SECONDS, so the one timer is enough."""
LANE_RATE = 1 << 19
"""Bytes/s of our caps that are worth one more lane: what one TCP connection makes of 70 ms and 0.1 % loss (Mathis)."""
PAUSE_SECONDS = 5.0
"""From a disk that refused to the next attempt."""

Notice = ev.Announced | ev.Completed | ev.AbortSeen | ev.Contradicted | ev.Equivocated | ev.Refused | ev.Banned
"""What the daemon is told. Completed: everything of the artifact is on disk, durably."""


@asynccontextmanager
async def open_exchange(
    *,
    identity: Identity,
    swarm: SwarmId,
    store: ArtifactStore,
    spool: Path,
    listen: str,
    up_rate: int = 0,
    down_rate: int = 0,
    wan_lanes: int = bulk.MAX_LANES,
    local: Sequence[str] = (),
    log: Path | None = None,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    machine: Exchange | None = None,
) -> AsyncIterator[ExchangeDriver]:
    """Run the data plane. listen: "IP:port", port 0 = any. Rates: bytes/s, 0 = no cap. local: CIDRs (addresses.py).

    wan_lanes: connections of a link that we dial to a peer of another region, 1 to 8.
    log: file for the bulk child's own messages; limits: its share of the machine.
    machine: decides instead of an Exchange for this identity and swarm: another plan on the same data plane.
    Raises, within a group, PortInUseError, UsageError, StoreError or ChildError.
    """
    host, port = split_bulk(listen)
    try:
        spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot use {spool}: {error.strerror}") from error
    start = bulk.BulkStart(identity.seed, swarm, host, port, up_rate, down_rate, str(spool))
    plane = DataPlane(start, log, limits)
    driver = ExchangeDriver(identity.peer, plane, store, Gate(identity.peer, _CHANCE, local), wan_lanes, machine)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.run_plane)
        await plane.listening.wait()
        nursery.start_soon(driver.run_clock)
        nursery.start_soon(driver.run_store)
        yield driver
        nursery.cancel_scope.cancel()


class ExchangeDriver:
    """`feed` events of the daemon, take `notices`, look at `status()`. Made by open_exchange."""

    def __init__(
        self,
        me: PeerId,
        plane: DataPlane,
        store: ArtifactStore,
        gate: Gate,
        wan_lanes: int = bulk.MAX_LANES,
        machine: Exchange | None = None,
    ) -> None:
        self._plane, self._store, self._gate, self._wan_lanes = plane, store, gate, wan_lanes
        config = ExchangeConfig(plane.start.swarm, plane.start.up_rate * 8 // 1000)
        self._machine = machine if machine is not None else Exchange(config, me, _CHANCE)
        self._keeper = Keeper(store, self._outcome, self._release)
        self._traffic = Traffic()
        self.notices: Backlog[Notice] = Backlog(MAX_NOTICES)
        self._events: deque[ev.Event] = deque()
        self._applying = False
        self._resume_at = float("inf")
        self._fetch_held = False
        self._unfinished: list[Finish] = []
        self._handshakes_refused: dict[str, int] = {}
        self._changed = trio.Event()
        self._observe_at = 0.0

    @property
    def port(self) -> int:
        """Where the data plane listens."""
        return self._plane.start.listen_port

    @property
    def linked(self) -> Collection[PeerId]:
        """Peers with an open link."""
        return tuple(self._traffic.linked)

    @property
    def rtts(self) -> Mapping[PeerId, float]:
        """Linked peer -> shortest round trip of the last minutes in seconds, where the kernel has measured one."""
        return self._traffic.rtts

    def holders(self, artifact: ArtifactId) -> Mapping[PeerId, int]:
        """How many of an artifact's segments each linked peer announced."""
        return self._machine.holders(artifact)

    def reach_of(self, artifact: ArtifactId) -> tuple[int, int]:
        """(the segments held, as a bit set; how many there are as far as anybody told us)."""
        return self._machine.reach_of(artifact)

    async def feed(self, event: ev.Event) -> None:
        """An event of the daemon's own: trust, roster, publication, Accept or Decline, Restored, Retire, Aborted."""
        if isinstance(event, ev.Publish | ev.Restored) and len(event.manifest.signed_header.body) > bulk.MAX_FRAME // 2:
            raise ShapeError("the header is too large for a frame: fewer tensors, or shorter names")
        self._apply(event)
        await trio.lowlevel.checkpoint()
        await self._plane.commands.room()

    async def change_caps(self, up_kib: object = None, down_kib: object = None) -> Mapping[str, float]:
        """Set the caps in KiB/s (0 = none); None leaves one as it is. Returns both. Raises UsageError."""
        start = self._plane.start
        up = start.up_rate if up_kib is None else _rate(up_kib)
        down = start.down_rate if down_kib is None else _rate(down_kib)
        self._plane.set_rates(up, down)
        await self._plane.commands.room()
        return {"up_kib": up / 1024, "down_kib": down / 1024}

    def hold_fetching(self, held: bool) -> None:
        """Whether to ask for no segment, by the owner's rules; uploads go on. A disk that refuses holds it as well."""
        if held != self._fetch_held:
            self._fetch_held = held
            self._apply(ev.PauseFetch(held or self._resume_at < float("inf")))

    def status(self) -> dict[str, Any]:
        """A snapshot of plain values for JSON: traffic.py, and the state of the data plane itself."""
        now, start = boottime(), self._plane.start
        traffic = self._traffic.snapshot(lambda artifact: self._machine.have(artifact).bit_count())
        standings = self._machine.standings()
        for peer in traffic["peers"]:
            peer["standing"] = asdict(standings[peer["peer"]]) if peer["peer"] in standings else None
        return {
            **traffic,
            "port": self.port,
            "up_kib": start.up_rate / 1024,
            "down_kib": start.down_rate / 1024,
            "disk_paused": self._resume_at < float("inf") or self._fetch_held,
            "banned": {peer: round(until - now, 1) for peer, until in self._gate.bans.items()},
            "handshakes_refused": dict(self._handshakes_refused),
            "bulk_pid": self._plane.pid,
            "restarts": self._plane.restarts,
        }

    # ---- tasks

    async def run_plane(self) -> None:
        await self._plane.run(self._arrived, self._begun, self._lost)

    async def run_store(self) -> None:
        await self._keeper.run()

    async def run_clock(self) -> None:
        """The one timer."""
        while True:
            now = boottime()
            due = self._machine.next_deadline()
            if due <= now:
                for effect in self._machine.expire(now=now):
                    self._carry_out(effect)
                self._drain()
                due = self._machine.next_deadline()
            self._housekeep(now)
            self._changed = trio.Event()
            due = min(due, self._gate.next_deadline(), self._resume_at)
            await trio.sleep(LOOK_SECONDS)
            with trio.move_on_after(min(max(due - boottime(), 0.0), MAX_WAIT_SECONDS)):
                await self._changed.wait()

    def _housekeep(self, now: float) -> None:
        if now >= self._observe_at:
            self._traffic.observe(now)
            self._observe_at = now + OBSERVE_SECONDS
        if any(until <= now for until in self._gate.bans.values()):
            self._plane.commands.put(self._gate.members(now))
        if self._resume_at <= now:
            self._resume_at = float("inf")
            for job in self._unfinished:
                self._keeper.jobs.put(job)
            self._unfinished.clear()
            self._apply(ev.PauseFetch(self._fetch_held))
        self._give_up_surplus()
        for peer, address in self._gate.dialler.due(now):
            self._plane.commands.put(bulk.DialPeer(peer, address, self._lanes_to(peer)))

    def _give_up_surplus(self) -> None:
        """Close links to neighbours that were exchanged for others, once nothing is under way on them."""
        surplus = self._gate.dialler.surplus()
        standings = self._machine.standings() if surplus else {}
        for peer in surplus:
            if peer not in standings or not (standings[peer].asked or standings[peer].queued):
                self._gate.dialler.given_up(peer)
                self._plane.commands.put(bulk.CloseLink(peer, "exchanged for another neighbour"))

    # ---- events in

    def _begun(self) -> None:
        self._plane.commands.put(self._gate.members(boottime()))

    def _lost(self) -> None:
        for peer in self.linked:
            self._link_down(peer)

    async def _arrived(self, event: bulk.BulkEvent) -> None:
        self._translate(event)
        self._changed.set()
        await trio.lowlevel.checkpoint()
        await self._plane.commands.room()
        await self._keeper.jobs.room()
        await self.notices.room()

    def _translate(self, event: bulk.BulkEvent) -> None:
        match event:
            case bulk.FrameArrived(peer, frame):
                self._apply(ev.FrameIn(peer, decode(frame, ExchangeFrame)))  # type: ignore[arg-type]
            case bulk.SegmentArrived(peer, frame, path, length, digest):
                self._apply(ev.SegmentIn(peer, decode(frame, SegmentData), path, length, digest))
            case bulk.SegmentSent(peer, artifact, index, length, queue):
                self._apply(ev.SegmentOut(peer, artifact, index, length, queue))
            case bulk.SegmentFailed(peer, artifact, index):
                self._apply(ev.SendFailed(peer, artifact, index))
            case bulk.SpoolFull(peer, frame):
                self._apply(ev.SegmentLost(peer, decode(frame, SegmentData)))
                self._pause()
            case bulk.LinkOpened(peer, address, dialled):
                self._traffic.opened(peer, address, dialled=dialled)
                self._gate.dialler.opened(peer, boottime(), dialled=dialled)
                self._apply(ev.LinkUp(peer))
            case bulk.LinkClosed(peer):
                self._link_down(peer)
            case bulk.DialFailed(peer):
                self._gate.dialler.failed(peer, boottime())
            case bulk.BulkStats(_, refused, links):
                self._handshakes_refused = dict(refused)
                self._traffic.looked(links)

    def _link_down(self, peer: PeerId) -> None:
        self._traffic.closed(peer)
        self._gate.dialler.closed(peer, boottime())
        self._apply(ev.LinkDown(peer))

    def _release(self, tokens: Sequence[str]) -> None:
        if tokens:
            self._plane.commands.put(bulk.FreeSpool(tuple(tokens)))

    def _outcome(self, outcome: Outcome) -> None:
        match outcome:
            case Finished(manifest):
                self.notices.put(ev.Completed(manifest.artifact))
            case DiskRefused(_, job):
                self._unfinished.extend([job] if job else [])
                self._pause()
            case _:
                self._apply(outcome)

    def _pause(self) -> None:
        if self._resume_at == float("inf"):
            self._apply(ev.PauseFetch(True))
        self._resume_at = boottime() + PAUSE_SECONDS

    def _apply(self, event: ev.Event) -> None:
        """One event and everything that follows from it. Never waits."""
        self._events.append(event)
        self._drain()
        self._changed.set()

    def _drain(self) -> None:
        if self._applying:
            return
        self._applying = True
        try:
            while self._events:
                event = self._events.popleft()
                now = boottime()
                self._traffic.happened(event)
                self._follow(event, now)
                for effect in self._machine.handle(event, now=now):
                    self._carry_out(effect)
        finally:
            self._applying = False

    def _follow(self, event: ev.Event, now: float) -> None:
        """What we do ourselves about an event."""
        match event:
            case ev.TrustChanged(_, hosts):
                self._plane.commands.put(self._gate.trust(hosts, now))
            case ev.RosterChanged(roster):
                self._traffic.retain(roster.peers)
                self._plane.commands.put(self._gate.admit(roster, now))
                for peer, link in self._traffic.linked.items():
                    if link.dialled:
                        self._plane.commands.put(bulk.SetLanes(peer, self._lanes_to(peer)))

    def _lanes_to(self, peer: PeerId) -> int:
        start = self._plane.start
        capped = bool(start.up_rate and start.down_rate)
        worthwhile = 1 + max(start.up_rate, start.down_rate) // LANE_RATE if capped else bulk.MAX_LANES
        return min(self._wan_lanes, worthwhile) if self._gate.dialler.is_far(peer) else 1

    # ---- effects out

    def _carry_out(self, effect: ev.Effect) -> None:
        commands = self._plane.commands
        match effect:
            case ev.SendFrame(peer, frame):
                commands.put(bulk.SendFrame(peer, encode(frame)))
            case ev.SendSegment():
                self._send_segment(effect)
            case ev.CancelSend(peer, artifact, indices):
                commands.put(bulk.CancelSend(peer, artifact, indices))
            case ev.CloseLink(peer, reason):
                commands.put(bulk.CloseLink(peer, reason[:512]))
            case ev.Keep(artifact, _, token):
                self._traffic.kept(artifact, token)
                self._keeper.jobs.put(effect)
            case ev.Discard(token):
                self._traffic.discarded(token)
                self._keeper.jobs.put(effect)
            case ev.Completed(artifact):
                manifest = self._traffic.manifest_of(artifact)
                if manifest is not None and not self._store.is_complete(artifact):
                    self._keeper.jobs.put(Finish(manifest))
            case _:
                self._tell(effect)

    def _send_segment(self, effect: ev.SendSegment) -> None:
        manifest = self._traffic.manifest_of(effect.artifact)
        try:
            path = self._store.body_path(effect.artifact)
        except StoreError:
            manifest = None  # retired meanwhile
        if manifest is None:
            self._events.append(ev.SendFailed(effect.peer, effect.artifact, effect.index))
            return
        command = bulk.SendFile(
            peer=effect.peer,
            frame=encode(self._with_page(effect.frame, effect.peer, manifest)),
            artifact=effect.artifact,
            index=effect.index,
            path=str(path),
            offset=effect.index * manifest.header.segment_bytes,
            length=effect.length,
            digest=effect.expected,
        )
        self._plane.commands.put(command)

    def _with_page(self, frame: SegmentData, peer: PeerId, manifest: Manifest) -> SegmentData:
        """Lanes overtake each other: where there may be several, each segment brings its page along."""
        link = self._traffic.linked.get(peer)
        page = manifest.page_of(frame.index)
        if frame.page or page is None or link is None or (link.lanes == 1 and not self._gate.dialler.is_far(peer)):
            return frame
        return msgspec.structs.replace(frame, page=encode(page))

    def _tell(self, notice: Notice) -> None:
        match notice:
            case ev.Refused(_, reason):
                self._traffic.refused(reason)
                if self.notices.full:
                    return  # it is counted; a peer must not stop us by misbehaving
            case ev.Banned(peer, seconds):
                self._plane.commands.put(self._gate.ban(peer, seconds, boottime()))
                self._traffic.banned(peer, notice.reason, self._gate.bans)
            case ev.AbortSeen(artifact) | ev.Contradicted(artifact):
                self._traffic.forget(artifact)
                self._keeper.jobs.put(Remove(artifact))
            case ev.Announced(manifest):
                self._traffic.announced(manifest)
        self.notices.put(notice)


_CHANCE = random.SystemRandom()


def _rate(kib: object) -> int:
    """KiB/s as typed by the owner -> bytes/s. Raises UsageError."""
    if isinstance(kib, bool) or not isinstance(kib, int | float) or not 0 <= kib < 2**40:
        raise UsageError(f"{kib!r} is not a rate in KiB/s", hint="0 takes the cap away")
    return int(kib * 1024)
