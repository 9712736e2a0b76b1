"""What others do with this machine: everything but this process and its children.

    meter = Meter(home)      measured = meter.measure()      blocking, some ms: in a thread, every few seconds

The first measurement knows no load, for load is a difference. What the system does not tell is None.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from aurora_node.gpu import Gpu
from aurora_node.presence import Measured
from aurora_p2p.local.clock import boottime

_IDLE = ("idle", "iowait", "steal")
_COUNTED_TWICE = ("guest", "guest_nice")
"""Linux has them in user and nice as well."""
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of CPU since boot: of the whole machine, and of each of our processes (pid, start time)."""

    at: float
    busy: float
    own: Mapping[tuple[int, float], float]


def others_percent(before: CpuTimes, after: CpuTimes, cpus: int) -> float:
    """Share of the whole machine that others used between two looks, 0 to 100.

    A child that ended between them has taken its last seconds along: they count as others', once.
    """
    own = sum(seconds - before.own.get(who, 0.0) for who, seconds in after.own.items())
    capacity = max(after.at - before.at, 1e-3) * cpus
    return min(max(after.busy - before.busy - own, 0.0) / capacity, 1.0) * 100.0


class Meter:
    """folder: whose disk is watched. gpu: None where none is to be watched, or none is there."""

    def __init__(self, folder: Path, gpu: Gpu | None = None) -> None:
        self._folder, self._gpu = folder, gpu
        self._cpus = psutil.cpu_count() or 1
        self._before: CpuTimes | None = None

    def measure(self) -> Measured:
        """Look at everything once."""
        family = _family()
        now = CpuTimes(boottime(), _busy_seconds(), _own_seconds(family))
        before, self._before = self._before, now
        return Measured(
            cpu_others=others_percent(before, now, self._cpus) if before else None,
            gpu_others=self._gpu.others_percent({process.pid for process in family}) if self._gpu else None,
            on_battery=_on_battery(),
            free_ram=free_ram(),
            free_disk=_free_disk(self._folder),
        )


def rss_of(pid: int) -> int:
    """Bytes of memory of a process; 0 once it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def free_ram() -> int:
    """Bytes that can still be had: of the machine, and of the control group (a container) we are in."""
    free = int(psutil.virtual_memory().available)
    left = _cgroup_left()
    return free if left is None else min(free, left)


def total_ram() -> int:
    """Bytes of memory of the machine, or of the control group if that may have less."""
    total, limit = int(psutil.virtual_memory().total), _cgroup_number("memory.max")
    return total if limit is None else min(total, limit)


def _family() -> list[psutil.Process]:
    me = psutil.Process(os.getpid())
    return [me, *me.children(recursive=True)]


def _busy_seconds() -> float:
    times = psutil.cpu_times()._asdict()
    return float(sum(value for name, value in times.items() if name not in _IDLE + _COUNTED_TWICE))


def _own_seconds(family: Iterable[psutil.Process]) -> dict[tuple[int, float], float]:
    found = {}
    for process in family:
        try:
            times = process.cpu_times()
            found[process.pid, process.create_time()] = times.user + times.system
        except psutil.Error:
            continue  # ended meanwhile
    return found


def _on_battery() -> bool | None:
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError, ValueError):
        return None  # systems without the call, and drivers that report half of what they should
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


def _free_disk(folder: Path) -> int | None:
    try:
        return int(psutil.disk_usage(str(folder)).free)
    except OSError:
        return None


def disk_floor(folder: Path, wanted: int) -> int:
    """Bytes to leave free on the disk of `folder`: `wanted`, but at most a tenth of a small disk."""
    try:
        return min(wanted, int(psutil.disk_usage(str(folder)).total) // 10)
    except OSError:
        return wanted


def _cgroup_left() -> int | None:
    limit, used = _cgroup_number("memory.max"), _cgroup_number("memory.current")
    if limit is None or used is None:
        return None
    return max(limit - used + _cgroup_cache(), 0)


def _cgroup_cache() -> int:
    """Page cache that the control group would give up for programs."""
    try:
        lines = (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _cgroup_number(name: str) -> int | None:
    """A limit or figure of our control group (version 2); None when there is none."""
    try:
        text = (CGROUP / name).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None
