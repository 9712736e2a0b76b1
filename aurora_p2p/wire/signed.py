"""The envelope of everything signed: who, what, signature. The body is kept as the bytes that were signed.

Each signable type names its domain; `open_signed` checks that the signer is one of those allowed, that the signature
covers the body in that domain, and that the body decodes. Only then does anyone see a value.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, ClassVar, TypeVar

from msgspec import Meta

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.crypto.sign import is_signed_by, sign
from aurora_p2p.errors import SignatureError
from aurora_p2p.types import PeerId, Record
from aurora_p2p.wire.codec import MAX_MESSAGE, decode, encode
from aurora_p2p.wire.limits import PeerField, Signature64


class Signable(Record, frozen=True):
    """A value that travels signed. `domain` is its signature domain."""

    domain: ClassVar[str]


class Signed(Record, frozen=True):
    """signer, the exact body bytes that were signed, and the Ed25519 signature (crypto/sign.py)."""

    signer: PeerField
    body: Annotated[bytes, Meta(max_length=MAX_MESSAGE)]
    signature: Signature64


T = TypeVar("T", bound=Signable)


def seal(identity: Identity, value: Signable) -> Signed:
    """Encode and sign."""
    body = encode(value)
    return Signed(identity.peer, body, sign(identity, value.domain, body))


def open_signed(signed: Signed, kind: type[T], signers: Collection[PeerId] | None) -> T:
    """The value inside, or SignatureError / WireError.

    signers: who may have signed; None accepts any identity (then the caller must compare `signed.signer` itself).
    """
    if signers is not None and signed.signer not in signers:
        raise SignatureError(f"{kind.__name__} is signed by {signed.signer}, who may not sign it")
    if not is_signed_by(signed.signer, signed.signature, kind.domain, signed.body):
        raise SignatureError(f"the signature on a {kind.__name__} by {signed.signer} is wrong")
    return decode(signed.body, kind)
