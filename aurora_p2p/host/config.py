"""run.toml: what a swarm host needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from aurora_p2p.local.config import ABOVE_0, AT_LEAST_0, setting
from aurora_p2p.wire.limits import MAX_LEASE_SAMPLES, MAX_SEGMENT

DRAIN_SECONDS = 60.0
"""How long a host that is stopped waits for live leases: as long as the longest of the default settings. systemd waits
longer, and a restarted host honours what is still live."""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """Every key of run.toml with its default. Sizes and rates say their unit in the name."""

    checkpoint: str = setting("", "Folder with config.json and *.safetensors: version 0 of the policy.")
    listen: tuple[str, ...] = setting(
        ("/ip4/0.0.0.0/tcp/4100",), "Control plane (libp2p): TCP multiaddrs to listen on."
    )
    bulk_listen: str = setting("0.0.0.0:4102", "Data plane (TLS 1.3): IP:port to listen on; port 0 takes any free one.")
    advertise: tuple[str, ...] = setting((), "IPs that others reach this host at; empty: those it listens on.")
    bootstraps: tuple[str, ...] = setting((), "Bootstraps to be found through: multiaddrs ending in /p2p/<peer id>.")
    local: tuple[str, ...] = setting(
        (), "CIDRs of this swarm's private networks; members may dial addresses inside them. Goes into the ticket."
    )
    regions: tuple[str, ...] = setting(
        (), "Members whose region you decide, as 'PEER=0' to 'PEER=7'; the others' are measured."
    )
    up_kib_per_second: Annotated[float, AT_LEAST_0] = setting(0.0, "Upload cap of the data plane, KiB/s; 0: none.")
    down_kib_per_second: Annotated[float, AT_LEAST_0] = setting(0.0, "Download cap of the data plane, KiB/s; 0: none.")
    segment_bytes: Annotated[int, Meta(ge=256, le=MAX_SEGMENT)] = setting(
        262_144, "Bytes of one segment: the unit of transfer, hash and ban (256 to 4194304)."
    )
    quota_gib: Annotated[float, ABOVE_0] = setting(64.0, "Disk for artifacts, GiB.")
    rewrite_gib_per_hour: Annotated[float, AT_LEAST_0] = setting(
        32.0, "Most that snapshots made from stored deltas may write, GiB an hour; 0: none, the trainer publishes them."
    )
    max_lag: Annotated[int, Meta(ge=0, le=64)] = setting(
        1, "Versions a sample may be behind the step that consumes it (1: one-step asynchronous)."
    )
    max_lease_samples: Annotated[int, Meta(ge=1, le=MAX_LEASE_SAMPLES)] = setting(
        64, "Most samples in one lease (1 to 1024)."
    )
    lease_seconds: Annotated[float, ABOVE_0] = setting(
        60.0, "Longest lease, seconds; a slower node gets fewer samples, not more time."
    )
    metrics_listen: str = setting("", "Loopback IP:port of the Prometheus metrics, like 127.0.0.1:9462; empty: none.")
