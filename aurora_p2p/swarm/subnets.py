"""Which network an address is in: the unit of the quotas that keep an owner of many addresses from being many.

A provider hands out an IPv4 /24 or an IPv6 /48 to one customer, so addresses inside one are cheap to get together and
count as one neighbourhood. Networks of the ticket's `local` scope (a demo, a lab) are exempt, and so is what is no
address: it cannot be dialled either.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from aurora_p2p.wire.trust import PeerRecord

PREFIX_IPV4 = 24
PREFIX_IPV6 = 48


def bulk_ips(record: PeerRecord) -> list[str]:
    """Where a peer says that its data plane can be dialled, without the ports."""
    return [address.rpartition(":")[0].removeprefix("[").removesuffix("]") for address in record.bulk]


def subnets_of(ips: Iterable[str], local: Iterable[str] = ()) -> frozenset[str]:
    """The networks that addresses are in, without those inside `local` CIDRs."""
    scopes = [ipaddress.ip_network(cidr) for cidr in local]
    return frozenset(network for ip in ips if (network := _subnet(ip, scopes)))


def _subnet(text: str, scopes: list[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> str:
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return ""
    if any(ip in scope for scope in scopes):
        return ""
    prefix = PREFIX_IPV4 if ip.version == 4 else PREFIX_IPV6
    return str(ipaddress.ip_network((ip, prefix), strict=False))
