"""A good guest: keeps the machine's presence up to date, and tells the rest of the daemon what it means.

    measure (a thread)  \\
    pause, resume       -->  presence.py  -->  Stance  -->  leases, engine, fetching, caps      (whoever `follow`s)
    the clocks          /

The owner's pause is a small file in the home folder: a machine that was paused is paused after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from aurora_node.config import NodeConfig
from aurora_node.hours import parse_hours
from aurora_node.measure import disk_floor
from aurora_node.presence import GIB, Event, Measured, OwnerSays, Policy, Presence, Stance
from aurora_p2p.errors import StoreError
from aurora_p2p.local.clock import boottime, wall
from aurora_p2p.local.files import sync_folder, write_durably
from aurora_p2p.local.output import Output

MEASURE_SECONDS = 5.0
"""Half of what a reason must last before it counts; a look costs some milliseconds of a thread."""
PAUSED = "paused"
"""File in the home folder: the owner has paused this node."""


def policy_of(config: NodeConfig, folder: Path) -> Policy:
    """The owner's settings for the machine that `folder` is on. Raises UsageError for hours that cannot be read."""
    return Policy(
        hours=parse_hours(config.hours),
        cpu_percent=config.pause_when_cpu_busy,
        gpu_percent=config.pause_when_gpu_busy,
        pause_on_battery=config.pause_on_battery,
        min_free_ram=int(config.min_free_ram_gib * GIB),
        min_free_disk=disk_floor(folder, int(config.min_free_disk_gib * GIB)),
        unload_seconds=60.0 * config.unload_after_minutes,
    )


class Guest:
    """Run one `run`. `stance` is what holds now; each function given to `follow` hears of every new one."""

    def __init__(self, home: Path, policy: Policy, measure: Callable[[], Measured], output: Output) -> None:
        self._file, self._measure, self._output = home / PAUSED, measure, output
        self._presence = Presence(policy)
        self._followers: list[Callable[[Stance], None]] = []
        self._changed = trio.Event()
        self.stance = Stance()
        self._handle(OwnerSays(self._file.exists()))

    def follow(self, told: Callable[[Stance], None]) -> None:
        """Tell `told` the stance, now and whenever it changes."""
        self._followers.append(told)
        told(self.stance)

    async def run(self) -> None:
        """Measure and watch the clocks until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_clocks)
            while True:
                self._handle(await trio.to_thread.run_sync(self._measure))
                await trio.sleep(MEASURE_SECONDS)

    async def pause(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The control command. Also without a disk to remember it on: then until the restart."""
        self._handle(OwnerSays(True))
        try:
            await trio.to_thread.run_sync(write_durably, self._file, b"")
        except StoreError as error:
            return self.stance.status() | {"text": f"paused until the restart only: {error}"}
        return self.stance.status() | {"text": "paused, also after a restart, until `aurora-node resume`"}

    async def resume(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The control command. What else pauses (hours, others at work) goes on doing so."""
        self._handle(OwnerSays(False))
        await trio.to_thread.run_sync(self._forget)
        text = "working" if self.stance.working else f"still paused: {self.stance.detail}"
        return self.stance.status() | {"text": text}

    def _forget(self) -> None:
        try:
            self._file.unlink(missing_ok=True)
            sync_folder(self._file.parent)
        except OSError as error:
            raise StoreError(f"cannot remove {self._file}: {error.strerror}", hint="else it is paused again") from error

    async def _watch_clocks(self) -> None:
        while True:
            self._changed = trio.Event()
            due = min(self._presence.next_deadline() - boottime(), MEASURE_SECONDS)
            with trio.move_on_after(max(due, 0.0)):
                await self._changed.wait()
            self._stand(self._presence.expire(now=boottime(), local=wall().astimezone()))

    def _handle(self, event: Event) -> None:
        self._stand(self._presence.handle(event, now=boottime(), local=wall().astimezone()))
        self._changed.set()

    def _stand(self, stance: Stance) -> None:
        before, self.stance = self.stance, stance
        if stance == before:
            return
        if stance.paused_by != before.paused_by:
            text = stance.detail or "working again"
            self._output.event("paused" if stance.paused_by else "resumed", text, by=stance.paused_by)
        for told in self._followers:
            told(stance)
