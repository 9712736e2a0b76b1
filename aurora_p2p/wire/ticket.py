"""Tickets: everything a stranger needs to join, in one line that can be pasted.

    "aurora1" + base32( MessagePack(Ticket) + first 4 bytes of its BLAKE3 ), lower case, no padding

A bare swarm id is also accepted wherever a ticket is; it carries no addresses.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from typing import Annotated

from msgspec import Meta

from aurora_p2p.crypto.identity import public_key_of
from aurora_p2p.errors import TicketError, WireError
from aurora_p2p.types import Generation, Record, Seq, SwarmId
from aurora_p2p.wire.codec import decode, encode, hash_of
from aurora_p2p.wire.limits import Addresses, SwarmField
from aurora_p2p.wire.trust import Floor

PREFIX = "aurora1"
MAX_TICKET = 4096


class Ticket(Record, frozen=True):
    """bootstraps, hosts: libp2p multiaddrs ending in /p2p/<peer id>. local: CIDRs whose addresses may be dialled."""

    swarm: SwarmField
    bootstraps: Addresses = ()
    hosts: Addresses = ()
    floor: Floor = Floor(Generation(0), Seq(0))
    local: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=8)] = ()

    def __str__(self) -> str:
        body = encode(self)
        return PREFIX + base64.b32encode(body + hash_of(body)[:4]).decode().rstrip("=").lower()


def parse_ticket(text: str) -> Ticket:
    """Read a ticket or a bare swarm id. Raises TicketError saying what is wrong with it."""
    text = text.strip()
    if not text.startswith(PREFIX):
        return _bare(text)
    digits = text[len(PREFIX) :].upper()
    try:
        raw = base64.b32decode(digits + "=" * (-len(digits) % 8)) if len(text) <= MAX_TICKET else b""
    except binascii.Error:
        raw = b""
    body, check = raw[:-4], raw[-4:]
    canonical = base64.b32encode(raw).decode().rstrip("=") == digits  # the last letter has bits that decoding ignores
    if len(raw) < 8 or hash_of(body)[:4] != check or not canonical:
        raise TicketError(
            "this ticket is damaged or cut short", hint="copy the whole line that `aurora-host run` printed"
        )
    try:
        ticket = decode(body, Ticket)
        public_key_of(ticket.swarm)
        for network in ticket.local:
            ipaddress.ip_network(network)
    except (WireError, ValueError) as error:
        raise TicketError(f"this ticket cannot be read: {error}", hint="ask the host for a new ticket") from error
    return ticket


def _bare(text: str) -> Ticket:
    try:
        public_key_of(text)
    except WireError as error:
        raise TicketError(
            f"{text[:24]!r} is neither a ticket ({PREFIX}...) nor a swarm id (12D3Koo...)",
            hint="copy the line that `aurora-host run` printed",
        ) from error
    return Ticket(swarm=SwarmId(text))
