"""Addresses of the data plane: "host:port" or "[ipv6]:port", IP literals only (no name is ever resolved)."""

from __future__ import annotations

import ipaddress

from aurora_p2p.errors import WireError

Host = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_address(text: str) -> tuple[Host, int]:
    """(host, port) or WireError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        literal = None
    number = int(port) if len(port) <= 5 and port.isascii() and port.isdecimal() else 0
    if not colon or literal is None or not 0 < number < 65536:
        raise WireError(f"{text[:80]!r} is not an address like 192.0.2.1:4200 or [2001:db8::1]:4200")
    return literal, number


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def neighbourhood(host: Host) -> str | None:
    """The /24 or /48 that shares one budget of pending handshakes; None for loopback, which has no such limit."""
    if host.is_loopback:
        return None
    return str(ipaddress.ip_network((host, 24 if host.version == 4 else 48), strict=False))
