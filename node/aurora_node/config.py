"""node.toml: what the owner of a machine decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from aurora_p2p.local.config import ABOVE_0, AT_LEAST_0, setting

PERCENT = Meta(ge=0, le=100)
DRAIN_SECONDS = 20.0
"""How long leases may take to go back when the node is stopped; systemd waits longer."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Every key of node.toml with its default. The owner's limits hold whatever a swarm asks for."""

    bootstraps: tuple[str, ...] = setting((), "Bootstraps for bare swarm ids: multiaddrs ending in /p2p/<peer id>.")
    listen: tuple[str, ...] = setting(("/ip4/0.0.0.0/tcp/0",), "Control plane (libp2p): TCP multiaddrs to listen on.")
    bulk_listen: str = setting("0.0.0.0:0", "Data plane (TLS 1.3): IP:port to listen on; port 0 takes any free one.")
    advertise: tuple[str, ...] = setting((), "IPs that others reach this node at; empty: those it listens on.")
    local: tuple[str, ...] = setting((), "CIDRs of private networks whose addresses may be dialled (a lab, a demo).")
    up_kib_per_second: Annotated[float, AT_LEAST_0] = setting(0.0, "Upload cap of the data plane, KiB/s; 0: none.")
    down_kib_per_second: Annotated[float, AT_LEAST_0] = setting(0.0, "Download cap of the data plane, KiB/s; 0: none.")
    paused_up_kib_per_second: Annotated[float, AT_LEAST_0] = setting(
        0.0, "Upload cap while work is paused, KiB/s; 0: the same as otherwise."
    )
    paused_down_kib_per_second: Annotated[float, AT_LEAST_0] = setting(
        0.0, "Download cap while work is paused, KiB/s; 0: the same as otherwise."
    )
    hours: tuple[str, ...] = setting(
        (), 'When this machine works, in its own time: "22:00-07:00", "Mon-Fri 18:00-08:00"; empty: always.'
    )
    pause_when_cpu_busy: Annotated[float, PERCENT] = setting(
        0.0, "Pause while other programs use this many percent of the CPU; 0: never (the engine runs at `nice`)."
    )
    pause_when_gpu_busy: Annotated[float, PERCENT] = setting(
        0.0, "Pause, and free the GPU, while other programs use this many percent of it; 0: never."
    )
    pause_on_battery: bool = setting(True, "Pause while the machine runs on its battery.")
    quota_gib: Annotated[float, ABOVE_0] = setting(64.0, "Disk for artifacts, GiB.")
    rewrite_gib_per_hour: Annotated[float, AT_LEAST_0] = setting(
        16.0,
        "Most that folding stored deltas into one may write, GiB an hour; 0: never (disk fills up to quota_gib).",
    )
    min_free_disk_gib: Annotated[float, AT_LEAST_0] = setting(
        1.0, "Disk left free, GiB (a tenth of a smaller disk): below it fetching waits; uploads and work go on."
    )
    min_free_ram_gib: Annotated[float, AT_LEAST_0] = setting(
        0.25, "Memory left free, GiB: below it work pauses and the engine's memory is given back; 0: never."
    )
    max_ram_gib: Annotated[float, AT_LEAST_0] = setting(
        0.0, "Memory of the engine, GiB: larger models are declined, an engine above it is restarted; 0: no cap."
    )
    unload_after_minutes: Annotated[float, AT_LEAST_0] = setting(
        10.0, "A pause longer than this gives the engine's memory back, minutes."
    )
    max_model_gib: Annotated[float, ABOVE_0] = setting(
        64.0, "Largest model this machine takes, GiB in its checkpoint's dtypes."
    )
    max_context_tokens: Annotated[int, ABOVE_0] = setting(32_768, "Longest prompt plus answer this machine works on.")
    max_lease_seconds: Annotated[float, ABOVE_0] = setting(600.0, "Longest lease this machine accepts, seconds.")
    engine: str = setting(
        "hf", "Rollout engine: hf (transformers); simulated[:a100 or tokens/s] invents tokens, for tests of a fleet."
    )
    device: str = setting("auto", "auto, cpu or cuda.")
    nice: Annotated[int, Meta(ge=0, le=19)] = setting(
        5, "Nice value of the engine, 0 (like other programs) to 19 (only what they leave); the data plane: 5 less."
    )
    io_priority: Literal["normal", "low", "idle"] = setting(
        "low",
        "Disk priority of engine and data plane: normal, low (after other programs), idle (only what they leave).",
    )
    threads: Annotated[int, Meta(ge=0, le=1024)] = setting(0, "CPU threads of the engine; 0: all but one.")
    max_batch: Annotated[int, Meta(ge=1, le=4096)] = setting(32, "Sequences generated at once.")
    audit_every: Annotated[int, ABOVE_0] = setting(
        16, "Recompute the full weight digest every this many commits (1: each one)."
    )
    metrics_listen: str = setting("", "Loopback IP:port of the Prometheus metrics, like 127.0.0.1:9463; empty: none.")
