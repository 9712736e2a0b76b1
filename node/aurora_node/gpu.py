"""What others do with the GPU that the engine computes on (NVML).

    gpu = open_gpu("cuda:0")      None: no driver, no such GPU, or one that is shared out in slices (MIG)
    gpu.others_percent(pids)      blocking, about a millisecond; None: not known

NVML is loaded here alone, and only where its owner asked for it: a machine without a driver needs none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Set
from pathlib import Path
from types import ModuleType
from typing import Any


class Gpu:
    """One GPU. `handle` is NVML's."""

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._seen_until = 0
        self.name = str(nvml.nvmlDeviceGetName(handle))

    def others_percent(self, own: Set[int]) -> float | None:
        """Share of the GPU's time that processes other than `own` used since the last look, 0 to 100.

        None where the driver hides who computes, as it does in a container: nobody can then be told apart from us.
        """
        nvml = self._nvml
        try:
            used = float(nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
            present = set(self._processes())
        except nvml.NVMLError:
            return None
        if not all(Path(f"/proc/{pid}").exists() for pid in present):
            return None  # numbers of another process name space: ours may be among them
        if not present - own:
            return 0.0 if present or used == 0.0 else None
        return max(used - self._own_percent(own), 0.0)

    def memory(self) -> tuple[int, int] | None:
        """Bytes of its memory: all, and free; None when the driver does not say."""
        try:
            found = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        except self._nvml.NVMLError:
            return None
        return int(found.total), int(found.free)

    def _processes(self) -> Iterator[int]:
        nvml = self._nvml
        for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
            with contextlib.suppress(nvml.NVMLError_NotSupported):
                yield from (process.pid for process in ask(self._handle))

    def _own_percent(self, own: Set[int]) -> float:
        """Of the samples that the driver kept since the last look, the mean of ours."""
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_until)
        except nvml.NVMLError:  # none since, or a driver that keeps none
            return 0.0
        self._seen_until = max((sample.timeStamp for sample in samples), default=self._seen_until)
        ours = [float(sample.smUtil) for sample in samples if sample.pid in own]
        times = {sample.timeStamp for sample in samples}
        return sum(ours) / len(times) if times else 0.0


def open_gpu(device: str) -> Gpu | None:
    """The GPU behind a torch device name."""
    nvml = _load()
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
        handle = _handle_of(nvml, _visible(device))
        if handle is None:
            return None
        return Gpu(nvml, handle)
    except nvml.NVMLError:
        return None


def _load() -> ModuleType | None:
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return None
    loaded: ModuleType = pynvml
    return loaded


def _visible(device: str) -> str:
    """What CUDA_VISIBLE_DEVICES has at the index of `device`: a number or a UUID; else the index itself."""
    index = device.partition(":")[2] or "0"
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return names[int(index)] if index.isdecimal() and int(index) < len(names) else index


def _handle_of(nvml: ModuleType, name: str) -> Any:
    if name.startswith("MIG-"):
        return None  # NVML has no utilization of slices
    handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)
    with contextlib.suppress(nvml.NVMLError):  # a GPU that knows no slices
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
        if current:
            return None
    return handle
