"""What every signature in the system covers.

    signed bytes = fields("aurora-p2p", domain, wire version, body)      fields() length-prefixes each with a uint32 BE

The domain names the message type, so no signature can be lent to another type; the wire version keeps a signature from
being read under other rules.
"""

from __future__ import annotations

from aurora_p2p.crypto.identity import Identity, verify

WIRE_VERSION = 1
"""The version this code speaks. Peers exchange a supported range in Hello and Join."""
WIRE_MIN = 1
"""The oldest version this code still speaks."""


def fields(*parts: bytes) -> bytes:
    """Length-prefix and join: injective, so two different tuples never give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def signing_bytes(domain: str, body: bytes, wire_version: int = WIRE_VERSION) -> bytes:
    return fields(b"aurora-p2p", domain.encode(), wire_version.to_bytes(2, "big"), body)


def sign(identity: Identity, domain: str, body: bytes) -> bytes:
    """64-byte Ed25519 signature over `body` in `domain`."""
    return identity.sign(signing_bytes(domain, body))


def is_signed_by(peer: str, signature: bytes, domain: str, body: bytes) -> bool:
    return verify(peer, signature, signing_bytes(domain, body))
