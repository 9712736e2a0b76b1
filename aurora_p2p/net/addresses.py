"""Which addresses may be dialled, and how they are written.

Peers name their own addresses, so a hostile record could aim members at somebody's router or loopback services.
Private, loopback and link-local addresses are dialled only inside the CIDRs of a ticket's `local` scope or the owner's
configuration. No name is ever resolved: addresses are IP literals.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from aurora_p2p.errors import UsageError, WireError

_FAMILIES = {"ip4", "ip6"}


def split_bulk(address: str) -> tuple[str, int]:
    """ "127.0.0.1:4102" or "[::1]:4102" -> (IP, port). Raises WireError."""
    host, separator, port = address.rpartition(":")
    ip = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(ip)
        number = int(port) if port.isdecimal() and len(port) <= 5 else -1
    except ValueError:
        number = -1
    if not separator or not 0 <= number <= 65535:
        raise WireError(f"{address[:64]!r} is not IP:port")
    return ip, number


def join_bulk(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def control_ip(multiaddr: str) -> str:
    """The IP literal of "/ip4/…/tcp/…[/p2p/…]". Raises WireError for any other form."""
    parts = multiaddr.split("/")
    if len(parts) < 5 or parts[0] or parts[1] not in _FAMILIES or parts[3] != "tcp":
        raise WireError(f"{multiaddr[:64]!r} is not /ip4|ip6/IP/tcp/PORT")
    try:
        return str(ipaddress.ip_address(parts[2]))
    except ValueError as error:
        raise WireError(f"{multiaddr[:64]!r} has no IP literal") from error


def may_dial(ip: str, local: Iterable[str]) -> bool:
    """Whether a peer-named IP may be dialled: global unicast, or inside one of the `local` CIDRs."""
    address = ipaddress.ip_address(ip)
    if any(address in ipaddress.ip_network(cidr) for cidr in local):
        return True
    return address.is_global and not address.is_multicast


def check_cidrs(cidrs: Sequence[str]) -> tuple[str, ...]:
    """The CIDRs, or UsageError naming the wrong one."""
    for cidr in cidrs:
        try:
            ipaddress.ip_network(cidr)
        except ValueError as error:
            raise UsageError(f"{cidr!r} is not a network: {error}", hint="write it like 10.0.0.0/8") from error
    return tuple(cidrs)


def own_scope(addresses: Iterable[str]) -> tuple[str, ...]:
    """Networks that the user has named themselves by typing an address: loopback when they typed a loopback address."""
    scopes = set()
    for address in addresses:
        ip = ipaddress.ip_address(control_ip(address))
        if ip.is_loopback:
            scopes.add("127.0.0.0/8" if ip.version == 4 else "::1/128")
    return tuple(sorted(scopes))


def advertised_bulk(advertise: Sequence[str], control: Sequence[str], port: int) -> tuple[str, ...]:
    """Data plane addresses for a peer record: the owner's IPs, else those of the control plane's own addresses."""
    ips = advertise or tuple(dict.fromkeys(control_ip(address) for address in control))
    return tuple(join_bulk(ip, port) for ip in ips)[:16]
