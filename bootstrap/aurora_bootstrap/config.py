"""bootstrap.toml: what an operator may set for a bootstrap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from aurora_p2p.local.config import setting

CONFIG = "bootstrap.toml"


@dataclass(frozen=True, slots=True)
class BootstrapConfig:
    """Every key of bootstrap.toml with its default."""

    listen: tuple[str, ...] = setting(("/ip4/0.0.0.0/tcp/4101",), "libp2p TCP multiaddrs to listen on.")
    max_registrations: Annotated[int, Meta(ge=1, le=2**20)] = setting(
        16_384, "Registrations kept, all swarms together; each is under 2 KB of memory."
    )
    max_per_swarm: Annotated[int, Meta(ge=1, le=2**20)] = setting(
        2_048, "Registrations kept for one swarm: twice the largest roster."
    )
    metrics_listen: str = setting("", "Loopback IP:port of the Prometheus metrics, like 127.0.0.1:9461; empty: none.")
