"""BLAKE3 of whole tensors, carried in the block stream behind what they are of.

    hash block := tensor 0 1 HASH 32 hash crc       offset 0 and length 1 are fixed; it claims no element

The hash is over the tensor's bit patterns, little-endian, in row-major order: of a file of safetensors, its bytes. The
header is signed before anything is scanned, so a hash cannot be in it; here it is covered by the segment hashes, the
pages and the final page like every other byte. It names a tensor cryptographically, which the state digest does not.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3

from aurora_p2p.delta.block import HASH, RawBlock, frame
from aurora_p2p.delta.tensors import Bits
from aurora_p2p.errors import WireError

HASH_BYTES = 32


class TensorHash:
    """The hash of one tensor, fed with its elements in order."""

    def __init__(self) -> None:
        self._hasher = blake3()

    def extend(self, bits: Bits) -> None:
        """The next elements, C-contiguous."""
        self._hasher.update(bits.astype(bits.dtype.newbyteorder("<"), copy=False).view(np.uint8).data)

    def value(self) -> bytes:
        return self._hasher.digest()


def tensor_hash(bits: Bits) -> bytes:
    """The hash of a whole tensor."""
    whole = TensorHash()
    whole.extend(bits)
    return whole.value()


def hash_block(tensor: int, value: bytes) -> bytes:
    """The framed block that carries the hash of the table's tensor with that number."""
    return frame(RawBlock(tensor, 0, 1, HASH, value))


def hash_of_block(block: RawBlock) -> bytes:
    """What a hash block carries. Raises WireError when it is not of that form."""
    if (block.mode, block.offset, block.length, len(block.payload)) != (HASH, 0, 1, HASH_BYTES):
        raise WireError(f"the hash of tensor {block.tensor} is not {HASH_BYTES} bytes in their place")
    return block.payload


class ExpectedHashes:
    """The hashes that a stream has announced so far, by tensor number: each at most once."""

    def __init__(self) -> None:
        self.found: dict[int, bytes] = {}

    def take(self, block: RawBlock) -> None:
        """Raises WireError for a malformed or second hash."""
        if block.tensor in self.found:
            raise WireError(f"the stream has two hashes of tensor {block.tensor}")
        self.found[block.tensor] = hash_of_block(block)

    def check(self, tensor: int, bits: Bits, name: str) -> None:
        """Raises WireError when a hash was announced for this tensor and is not that of `bits`."""
        if tensor in self.found and tensor_hash(bits) != self.found[tensor]:
            raise WireError(f"{name!r} does not have the BLAKE3 hash that came with it")
