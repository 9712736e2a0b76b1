"""Whole elements without a base: byte planes, each entropy-coded where that helps.

    payload := plane...          one per byte of the item, most significant first
    plane   := size bytes        size (varint): length of a Zstandard frame (RFC 8878), or 0: the bytes follow raw

Elements are rotated left by one bit first, so that the first plane of a float is its exponent (bf16, fp32) and the
sign travels with the mantissa, which does not compress. Exponents of trained weights take about 2.7 bits of their 8.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import zstandard

from aurora_p2p.delta.tensors import Bits
from aurora_p2p.delta.varint import read_varint, varint
from aurora_p2p.errors import WireError

LEVEL = 1
"""Exponents have no matches to find: higher levels cost time and gain nothing."""
SAMPLE_BYTES = 1 << 14
WORTH = 0.95
"""A plane is compressed when its sample shrinks below this share."""

Plane = npt.NDArray[np.uint8]


def encode(bits: Bits) -> bytes:
    """Payload for uint[n], n > 0."""
    return b"".join(_encode_plane(plane) for plane in _planes(bits))


def decode(payload: bytes, length: int, dtype: np.dtype[np.unsignedinteger]) -> Bits:
    """uint[length] again. Raises WireError; allocates no more than the elements take."""
    planes, at = np.empty((length, dtype.itemsize), np.uint8), 0
    for column in reversed(range(dtype.itemsize)):
        planes[:, column], at = _decode_plane(payload, at, length)
    if at != len(payload):
        raise WireError("a dense block has bytes after its end")
    rotated = planes.reshape(-1).view(dtype.newbyteorder("<")).astype(dtype, copy=False)
    bits: Bits = (rotated >> dtype.type(1)) | (rotated << dtype.type(dtype.itemsize * 8 - 1))
    return bits


def _planes(bits: Bits) -> list[Plane]:
    kind = bits.dtype
    rotated = (bits << kind.type(1)) | (bits >> kind.type(kind.itemsize * 8 - 1))
    columns = rotated.astype(kind.newbyteorder("<"), copy=False).view(np.uint8).reshape(-1, kind.itemsize)
    return [np.ascontiguousarray(columns[:, column]) for column in reversed(range(kind.itemsize))]


def _encode_plane(plane: Plane) -> bytes:
    raw = plane.tobytes()
    coder = zstandard.ZstdCompressor(level=LEVEL, write_content_size=False)
    middle = (len(raw) - SAMPLE_BYTES) // 2
    sample = raw[middle : middle + SAMPLE_BYTES] if middle > 0 else raw
    if len(coder.compress(sample)) < WORTH * len(sample):
        frame = coder.compress(raw)
        if len(frame) < len(raw):
            return varint(len(frame)) + frame
    return varint(0) + raw


def _decode_plane(payload: bytes, at: int, length: int) -> tuple[Plane, int]:
    parsed = read_varint(payload, at)
    if parsed is None:
        raise WireError("a dense block is cut short")
    size, at = parsed
    end = at + (size or length)
    if end > len(payload):
        raise WireError("a dense block is cut short")
    raw = payload[at:end]
    if size:
        raw = _decompress(raw, length)
    return np.frombuffer(raw, np.uint8), end


def _decompress(frame: bytes, length: int) -> bytes:
    try:
        stated = zstandard.get_frame_parameters(frame).content_size
        if stated not in (zstandard.CONTENTSIZE_UNKNOWN, length):  # it would be allocated before anything is decoded
            raise WireError(f"a plane of {stated} bytes for {length} elements")
        coder = zstandard.ZstdDecompressor(max_window_size=1 << 20)
        raw = coder.decompress(frame, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(f"a dense block does not decompress: {error}") from error
    if len(raw) != length:
        raise WireError(f"a plane of {len(raw)} bytes for {length} elements")
    return raw
