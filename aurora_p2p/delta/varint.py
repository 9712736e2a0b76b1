"""LEB128 varints in their shortest form, at most 63 bits."""

from __future__ import annotations

from aurora_p2p.errors import WireError

MAX_VARINT = 9
"""Bytes of 63 bits."""


def varint(value: int) -> bytes:
    """LEB128, shortest form."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes | bytearray, at: int) -> tuple[int, int] | None:
    """(value, where it ends) of the varint at `at`; None if it is cut short. Raises WireError if it is malformed."""
    value = 0
    for index, byte in enumerate(data[at : at + MAX_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if byte == 0 and index:
                raise WireError("a varint is not in its shortest form")
            return value, at + index + 1
    if len(data) - at >= MAX_VARINT:
        raise WireError("a varint is longer than 63 bits")
    return None
