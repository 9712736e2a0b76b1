"""What this machine is, for a support bundle: Python, packages, system, processor, memory, GPUs. Names nobody."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    """Plain values; sizes in bytes."""
    return {
        "python": sys.version,
        "packages": packages(),
        "system": {"name": platform.system(), "release": platform.release(), "machine": platform.machine()},
        "distribution": _distribution(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "memory_bytes": psutil.virtual_memory().total,
        "free_memory_bytes": psutil.virtual_memory().available,
        "gpus": gpus(),
    }


def packages() -> dict[str, str]:
    """Every installed distribution and its version."""
    found = {found.metadata["Name"]: found.version for found in importlib.metadata.distributions()}
    return dict(sorted((name, version) for name, version in found.items() if name))


def gpus() -> list[dict[str, Any]] | str:
    """Each NVIDIA GPU's name and memory, or why none can be seen."""
    import pynvml  # type: ignore[import-untyped,unused-ignore]

    try:
        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            return [_gpu(pynvml, handle) for handle in handles]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return str(error)


def _gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {
        "name": nvml.nvmlDeviceGetName(handle),
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "memory_bytes": memory.total,
        "free_bytes": memory.free,
    }


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""
