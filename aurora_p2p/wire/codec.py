"""Values <-> MessagePack bytes (msgspec), strictly typed and bounded.

Any bytes decode to a value within its declared limits or raise WireError: never another exception, and never an
allocation larger than the input justifies (array lengths are checked against their declared maximum first).
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec
from blake3 import blake3

from aurora_p2p.errors import WireError

T = TypeVar("T")

MAX_MESSAGE = 4 * 2**20
"""Bytes of one encoded message: the largest roster and tensor table fit (1,024 members, 20,000 tensors)."""

_encoder = msgspec.msgpack.Encoder()


@cache
def _decoder(kind: object) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def encode(value: object) -> bytes:
    """The one encoding of a value; equal values give equal bytes."""
    return _encoder.encode(value)


def decode(data: bytes | memoryview, kind: type[T], *, limit: int = MAX_MESSAGE) -> T:
    """Decode exactly one value of `kind` (a Record or a union of tagged Records). Raises WireError."""
    if len(data) > limit:
        raise WireError(f"message of {len(data)} bytes exceeds the limit of {limit}")
    try:
        value: T = _decoder(kind).decode(data)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError, OverflowError) as error:
        raise WireError(f"not a valid {getattr(kind, '__name__', 'message')}: {error}") from error
    return value


def hash_of(body: bytes) -> bytes:
    """BLAKE3, 32 bytes."""
    return blake3(body).digest()
