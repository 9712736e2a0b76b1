"""Whether this machine works now: what its owner said, the hours of the day, and who else uses it.

    WORKING <--> PAUSED by owner | hours | battery | memory | busy-gpu | busy-cpu          (the first that applies)

Sans-IO: measurements, the owner's word and both clocks come in; a Stance comes out, and the daemon carries it out.

Invariants: paused by anything means no lease is asked for. Segments are fetched, checked and passed on all the while:
a paused machine stays current, at the caps meant for it. Only a disk short of room stops fetching, and it stops nothing
else: uploads and work go on.

A lease in hand ends in its own time when the hours are over, for that moment was known before. It goes back at once
when somebody needs the machine: finished samples have been sent already, so a batch at most is lost. Memory (of the
machine or of its GPU) is given back at once when it is what is needed, and otherwise when a pause lasts.

What is not known (no GPU driver, no battery) never pauses. Noise does not either: a measured reason must hold for
ENTER_SECONDS, and stay away for LEAVE_SECONDS before work begins again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from aurora_node.hours import Hours

Reason = Literal["", "owner", "hours", "battery", "memory", "busy-gpu", "busy-cpu", "disk"]

ENTER_SECONDS = 10.0
"""A page that loads or a compiler's first second is no reason to stop; a person who waits notices about this long."""
LEAVE_SECONDS = 60.0
"""Somebody who pauses to think or read is still at work: starting again within a minute would be in the way."""
LEAVE_SHARE = 0.75
"""The load must fall below this share of its limit: one that stays at the limit does not flip the machine."""
POWER_SECONDS = 5.0
"""A plug that is moved to another socket."""
ROOM_SHARE = 1.25
"""Room on the disk or in memory must exceed its floor by this factor before it counts as room again."""
ROOM_SECONDS = 5.0
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Policy:
    """The owner's settings. Percentages of the whole machine; 0 turns a limit off. Bytes; seconds."""

    hours: Hours = field(default_factory=Hours)
    cpu_percent: float = 0.0
    gpu_percent: float = 0.0
    pause_on_battery: bool = True
    min_free_ram: int = 0
    min_free_disk: int = 0
    unload_seconds: float = math.inf
    """A pause longer than this gives the engine's memory back."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found; None: not known. Percentages are the share of others: all but this node and its children."""

    cpu_others: float | None = None
    gpu_others: float | None = None
    on_battery: bool | None = None
    free_ram: int | None = None
    free_disk: int | None = None


@dataclass(frozen=True, slots=True)
class OwnerSays:
    """`aurora-node pause` and `resume`."""

    paused: bool


Event = Measured | OwnerSays


@dataclass(frozen=True, slots=True)
class Stance:
    """What the daemon is to do now."""

    paused_by: Reason = ""
    detail: str = ""
    """One sentence for the owner."""
    until: str = ""
    """When it ends, in the owner's time ("22:00", "Mon 18:00"), where that is known."""
    hand_back: bool = False
    """The lease in hand goes back at once."""
    unload: bool = False
    """The engine ends, so that its memory is free."""
    fetching: bool = True

    @property
    def working(self) -> bool:
        """Whether leases may be asked for: a disk short of room is no reason not to."""
        return self.paused_by in ("", "disk")

    def status(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "working": self.working,
            "paused_by": self.paused_by,
            "detail": self.detail,
            "until": self.until,
            "unloaded": self.unload,
            "fetching": self.fetching,
        }


@dataclass(slots=True)
class _Condition:
    """A yes or no that must last before it counts."""

    enter_seconds: float
    leave_seconds: float
    holds: bool = False
    since: float = math.inf
    """From when the opposite has been seen; inf: it is not."""

    def seen(self, value: bool, now: float) -> None:
        self.since = math.inf if value == self.holds else min(self.since, now)
        self.expire(now)

    def expire(self, now: float) -> None:
        if now >= self.next_deadline:
            self.holds, self.since = not self.holds, math.inf

    @property
    def next_deadline(self) -> float:
        return self.since + (self.leave_seconds if self.holds else self.enter_seconds)


class Presence:
    """The machine. `now` is CLOCK_BOOTTIME seconds, `local` the date and time in the owner's zone."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._owner_paused = False
        self._last = Measured()
        self._paused_since = math.inf
        self._unload_at = self._hours_end = math.inf
        self._conditions = {
            "battery": _Condition(0.0, POWER_SECONDS),
            "memory": _Condition(ENTER_SECONDS, LEAVE_SECONDS),
            "busy-gpu": _Condition(ENTER_SECONDS, LEAVE_SECONDS),
            "busy-cpu": _Condition(ENTER_SECONDS, LEAVE_SECONDS),
            "disk": _Condition(0.0, ROOM_SECONDS),
        }

    def handle(self, event: Event, *, now: float, local: datetime) -> Stance:
        """The stance after this event."""
        match event:
            case OwnerSays(paused):
                self._owner_paused = paused
            case Measured():
                self._last = event
                for name, value in self._found(event).items():
                    self._conditions[name].seen(value, now)
        return self.expire(now=now, local=local)

    def expire(self, *, now: float, local: datetime) -> Stance:
        """The stance now. Call it by `next_deadline`, and also now and then: the date may be set by hand."""
        for condition in self._conditions.values():
            condition.expire(now)
        change = self._policy.hours.next_change(local)
        self._hours_end = now + (change - local).total_seconds() if change else math.inf
        reason = self._reason(local)
        if reason in ("", "disk"):
            self._paused_since = self._unload_at = math.inf
            return Stance(reason, self._detail(reason), fetching=reason != "disk")
        if self._paused_since == math.inf:
            self._paused_since, self._unload_at = now, now + self._policy.unload_seconds
        lasted = now >= self._paused_since + self._policy.unload_seconds
        self._unload_at = math.inf if lasted else self._unload_at
        return Stance(
            paused_by=reason,
            detail=self._detail(reason),
            until=_clock(change, local) if reason == "hours" and change else "",
            hand_back=reason != "hours",
            unload=reason in ("memory", "busy-gpu") or lasted,
            fetching=not self._conditions["disk"].holds,
        )

    def next_deadline(self) -> float:
        """CLOCK_BOOTTIME by which `expire` may say something else."""
        pending = [condition.next_deadline for condition in self._conditions.values()]
        return min([*pending, self._hours_end, self._unload_at])

    def _found(self, found: Measured) -> dict[str, bool]:
        policy = self._policy
        return {
            "battery": policy.pause_on_battery and found.on_battery is True,
            "memory": self._short("memory", found.free_ram, policy.min_free_ram),
            "disk": self._short("disk", found.free_disk, policy.min_free_disk),
            "busy-gpu": self._busy("busy-gpu", found.gpu_others, policy.gpu_percent),
            "busy-cpu": self._busy("busy-cpu", found.cpu_others, policy.cpu_percent),
        }

    def _busy(self, name: str, percent: float | None, limit: float) -> bool:
        return percent is not None and 0 < limit * (LEAVE_SHARE if self._conditions[name].holds else 1.0) <= percent

    def _short(self, name: str, free: int | None, floor: int) -> bool:
        return free is not None and free < floor * (ROOM_SHARE if self._conditions[name].holds else 1.0)

    def _reason(self, local: datetime) -> Reason:
        if self._owner_paused:
            return "owner"
        if not self._policy.hours.open_at(local):
            return "hours"
        order: tuple[Reason, ...] = ("battery", "memory", "busy-gpu", "busy-cpu", "disk")
        return next((name for name in order if self._conditions[name].holds), "")

    def _detail(self, reason: Reason) -> str:
        policy, last = self._policy, self._last
        match reason:
            case "owner":
                return "paused by the owner; `aurora-node resume` ends it"
            case "hours":
                return "outside the hours in node.toml"
            case "battery":
                return "the machine runs on its battery (pause_on_battery)"
            case "memory":
                return f"{_gib(last.free_ram)} of memory are free, {_gib(policy.min_free_ram)} are to stay free"
            case "busy-gpu":
                return (
                    f"others use {last.gpu_others or 0:.0f} % of the GPU (pause_when_gpu_busy {policy.gpu_percent:g})"
                )
            case "busy-cpu":
                return (
                    f"others use {last.cpu_others or 0:.0f} % of the CPU (pause_when_cpu_busy {policy.cpu_percent:g})"
                )
            case "disk":
                room = f"{_gib(last.free_disk)} of disk are free, {_gib(policy.min_free_disk)} are to stay free"
                return f"fetching waits: {room} (min_free_disk_gib)"
            case _:
                return ""


def _gib(count: int | None) -> str:
    return f"{(count or 0) / GIB:.1f} GiB"


def _clock(then: datetime, local: datetime) -> str:
    return f"{then:%H:%M}" if then.date() == local.date() else f"{then:%a %H:%M}"
