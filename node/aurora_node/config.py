"""node.toml: what the owner of a machine decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from aurora_p2p.local.config import ABOVE_0, AT_LEAST_0, setting


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
    quota_gib: Annotated[float, ABOVE_0] = setting(64.0, "Disk for artifacts, GiB.")
    max_model_gib: Annotated[float, ABOVE_0] = setting(
        64.0, "Largest model this machine takes, GiB in its checkpoint's dtypes."
    )
    max_context_tokens: Annotated[int, ABOVE_0] = setting(32_768, "Longest prompt plus answer this machine works on.")
    max_lease_seconds: Annotated[float, ABOVE_0] = setting(600.0, "Longest lease this machine accepts, seconds.")
    engine: str = setting("hf", "Rollout engine: hf (transformers).")
    device: str = setting("auto", "auto, cpu or cuda.")
    threads: Annotated[int, Meta(ge=0, le=1024)] = setting(0, "CPU threads of the engine; 0: all but one.")
    max_batch: Annotated[int, Meta(ge=1, le=4096)] = setting(32, "Sequences generated at once.")
    audit_every: Annotated[int, ABOVE_0] = setting(
        16, "Recompute the full weight digest every this many commits (1: each one)."
    )
