"""What this machine has room for: memory for a model, disk for an artifact. Figures first, so that a refusal has them.

memory_needed(header, ...)    bytes that an engine takes for the model of a snapshot's header
too_large(header, ...)        why this machine will never take it; "" if it may
Room                          why it cannot be taken now; "" when it can
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aurora_node.config import NodeConfig
from aurora_node.measure import free_ram
from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.wire.manifest import Header

GIB = 2**30
LIBRARIES_BYTES = {"hf": 600 * 2**20, "simulated": 200 * 2**20}
"""An engine without a model: interpreter, libraries (410 and 120 MiB measured), and what it compiles and caches."""
FP32_BYTES = 4
"""On a CPU the model computes in fp32 beside its checkpoint's own bits (engine/weights.py)."""


def memory_needed(header: Header, engine: str, device: str) -> int:
    """Host memory of an engine that serves this snapshot and stages what follows it; 0 for a delta.

    The checkpoint's own bits, the model that computes, and a working copy for what is staged. With a GPU the bits and
    the model are on it (engine/resident.py): the host sees them while they are loaded, a staged snapshot and its undo.
    """
    specs = [entry.spec for entry in header.tensors if entry.op == "full"]
    if header.kind != "snapshot" or not specs:
        return 0
    stored, elements = sum(spec.nbytes for spec in specs), sum(spec.elements for spec in specs)
    base = engine.partition(":")[0]
    model = FP32_BYTES * elements if base != "simulated" and device == "cpu" else 0
    return LIBRARIES_BYTES.get(base, 0) + 2 * stored + model


def too_large(header: Header, config: NodeConfig, device: str, *, total_ram: int, gpu_total: int | None = None) -> str:
    """Why the owner's settings, or the machine, rule an artifact out for good. Sizes in bytes; None: not known."""
    named = f"version {header.version}"
    if header.size_bound > config.max_model_gib * GIB:
        cap = f"{config.max_model_gib:g} GiB (max_model_gib in node.toml)"
        return f"{named} may take {header.size_bound:,} bytes, more than {cap}"
    needed = memory_needed(header, config.engine, device)
    if config.max_ram_gib and needed > config.max_ram_gib * GIB:
        return f"{named} needs {_gib(needed)} of memory, more than {config.max_ram_gib:g} (max_ram_gib in node.toml)"
    if needed > total_ram:
        return f"{named} needs {_gib(needed)} of memory, this machine has {_gib(total_ram)}"
    weights = sum(entry.spec.nbytes for entry in header.tensors if entry.op == "full")
    if gpu_total is not None and weights > gpu_total:
        return f"{named} has {_gib(weights)} of weights, the GPU has {_gib(gpu_total)}"
    return ""


@dataclass(frozen=True, slots=True)
class Room:
    """Asks the system, at the moment when an artifact is to be fetched. Call it in a thread.

    engine_bytes: what the engine holds now, which the next model may take over.
    """

    folder: Path
    floor: int
    """Disk to leave free, bytes."""
    engine: str
    device: str
    engine_bytes: Callable[[], int]

    def __call__(self, manifest: Manifest) -> str:
        header = manifest.header
        try:
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            return f"cannot look at the disk of {self.folder}: {error.strerror}"
        if header.size_bound > max(free - self.floor, 0):
            room = f"{_gib(free)} of disk are free and {_gib(self.floor)} stay free (min_free_disk_gib)"
            return f"version {header.version} needs {_gib(header.size_bound)}: {room}"
        needed, available = memory_needed(header, self.engine, self.device), free_ram() + self.engine_bytes()
        if needed > available:
            return f"version {header.version} needs {_gib(needed)} of memory, {_gib(available)} are free"
        return ""


def _gib(count: int) -> str:
    return f"{count / GIB:,.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:,.1f} MiB"
