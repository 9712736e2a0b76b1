"""Cross-checks of settings that several programs have: addresses, networks, the disk. Loads no libp2p."""

from __future__ import annotations

import ipaddress
import shutil
from collections.abc import Sequence
from pathlib import Path

from aurora_p2p.crypto.identity import public_key_of
from aurora_p2p.errors import UsageError, WireError
from aurora_p2p.local.configcheck import Problem, complaint, complaints
from aurora_p2p.net.addresses import check_cidrs, control_ip, split_bulk

MULTIADDR = "write it like /ip4/0.0.0.0/tcp/4101"


def check_listen(listen: Sequence[str]) -> list[Problem]:
    """Control plane addresses: TCP multiaddrs, one at least."""
    if not listen:
        return [Problem("listen", "there is no address to listen on", MULTIADDR)]
    return complaints("listen", listen, _multiaddr)


def check_addresses(
    bulk_listen: str, bootstraps: Sequence[str], advertise: Sequence[str], local: Sequence[str]
) -> list[Problem]:
    """The addresses and networks that node.toml and run.toml have in common."""
    problems = complaint("bulk_listen", lambda: _bulk(bulk_listen))
    problems += complaints("bootstraps", bootstraps, _bootstrap)
    problems += complaints("advertise", advertise, ipaddress.ip_address)
    return problems + complaints("local", local, lambda cidr: check_cidrs([cidr]))


def check_metrics(listen: str) -> list[Problem]:
    """metrics_listen: empty, or on this machine."""
    from aurora_p2p.local.metrics import loopback_address  # trio

    return complaint("metrics_listen", lambda: loopback_address(listen)) if listen else []


def check_quota(quota_gib: float, home: Path, used_bytes: int) -> list[Problem]:
    """A warning when the disk cannot hold the quota. used_bytes: what artifacts take of it already."""
    try:
        room = shutil.disk_usage(home).free + used_bytes
    except OSError:
        return []
    if quota_gib * 2**30 <= room:
        return []
    text = f"{quota_gib:g} GiB are more than there is room for ({room / 2**30:.1f} GiB)"
    return [Problem("quota_gib", text, "lower it, or free some disk space", warning=True)]


def _bulk(text: str) -> None:
    try:
        split_bulk(text)
    except WireError as error:
        raise UsageError(str(error), hint="write it like 0.0.0.0:4102") from error


def _multiaddr(text: str) -> None:
    try:
        control_ip(text)
    except WireError as error:
        raise UsageError(str(error), hint=MULTIADDR) from error
    port = text.split("/")[4]
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{text[:64]!r} has no port", hint=MULTIADDR)


def _bootstrap(text: str) -> None:
    """/ip4/.../tcp/.../p2p/<peer id>."""
    _multiaddr(text)
    _, marker, peer = text.partition("/p2p/")
    if not marker:
        raise UsageError(
            f"{text[:80]!r} does not end in /p2p/<peer id>", hint="copy what `aurora-bootstrap serve` said"
        )
    public_key_of(peer)
