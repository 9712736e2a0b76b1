"""Frames on a byte stream: uint32 BE header length, uint32 BE payload length, header, payload.

The header is an encoded message; the payload (segment bytes, encoded blocks) is raw and may be empty. Lengths are
checked before anything is kept.
"""

from __future__ import annotations

from typing import NamedTuple

from aurora_p2p.errors import WireError

PREFIX = 8
MAX_HEADER = 4 * 2**20
MAX_PAYLOAD = 4 * 2**20


class Frame(NamedTuple):
    header: bytes
    payload: bytes


def encode_frame(header: bytes, payload: bytes | memoryview = b"") -> bytes:
    return b"".join((encode_head(header, len(payload)), payload))


def encode_head(header: bytes, payload_bytes: int) -> bytes:
    """A frame without its payload, which must follow."""
    return b"".join((len(header).to_bytes(4, "big"), payload_bytes.to_bytes(4, "big"), header))


def frame_lengths(prefix: bytes, *, max_header: int = MAX_HEADER, max_payload: int = MAX_PAYLOAD) -> tuple[int, int]:
    """(header length, payload length) of an 8-byte prefix. Raises WireError when either is over its limit."""
    header, payload = int.from_bytes(prefix[:4], "big"), int.from_bytes(prefix[4:8], "big")
    if header > max_header or payload > max_payload or header == 0:
        raise WireError(f"frame announces {header} + {payload} bytes; the limits are {max_header} + {max_payload}")
    return header, payload


class FrameDecoder:
    """Sans-IO reader: feed bytes, take frames. Raises WireError on an impossible length and is then unusable."""

    def __init__(self, *, max_header: int = MAX_HEADER, max_payload: int = MAX_PAYLOAD) -> None:
        self._buffer = bytearray()
        self._max_header, self._max_payload = max_header, max_payload

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        self._buffer += data
        frames = []
        start = 0
        with memoryview(self._buffer) as view:
            while len(view) - start >= PREFIX:
                header, payload = frame_lengths(
                    bytes(view[start : start + PREFIX]),
                    max_header=self._max_header,
                    max_payload=self._max_payload,
                )
                middle, end = start + PREFIX + header, start + PREFIX + header + payload
                if len(view) < end:
                    break
                frames.append(Frame(bytes(view[start + PREFIX : middle]), bytes(view[middle:end])))
                start = end
        del self._buffer[:start]
        return frames

    @property
    def pending(self) -> int:
        """Bytes of an unfinished frame; non-zero at end of stream means that the stream was cut."""
        return len(self._buffer)
