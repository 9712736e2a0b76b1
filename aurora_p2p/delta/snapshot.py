"""A whole checkpoint from an artifact that needs no base: every element exactly once, and hashes of its tensors.

A hash need not be there: a rank that holds a part of a tensor cannot compute it. One that is there must be right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from aurora_p2p.delta.apply import read_blocks
from aurora_p2p.delta.block import HASH, check_block
from aurora_p2p.delta.coding import whole_bits
from aurora_p2p.delta.digest import EMPTY, RunningDigest
from aurora_p2p.delta.hashes import ExpectedHashes
from aurora_p2p.delta.tensors import Bits, Coverage, bits_dtype
from aurora_p2p.errors import DigestMismatch, WireError
from aurora_p2p.types import StateDigest, TensorSpec


def read_snapshot(specs: Sequence[TensorSpec], chunks: Iterable[bytes], expected: StateDigest) -> dict[str, Bits]:
    """The checkpoint's bits by name, from a stream cut anywhere into chunks.

    Raises WireError for malformed bytes, incomplete coverage or a wrong hash of a tensor, DigestMismatch when the
    result is not `expected`.
    Memory: a tensor is allocated whole when its first block arrives; the caller has judged the table's size.
    """
    tensors: dict[str, Bits] = {}
    digest, coverage, hashes = RunningDigest(EMPTY), Coverage(), ExpectedHashes()
    for spec, block in read_blocks(specs, chunks):
        if block.mode == HASH:
            hashes.take(block)
            continue
        check_block(block, spec)
        bits = whole_bits(block, spec)
        coverage.claim(block.tensor, block.offset, block.length)
        if spec.name not in tensors:
            tensors[spec.name] = np.empty(spec.elements, bits.dtype)
        tensors[spec.name][block.offset : block.offset + block.length] = bits
        digest.extend(spec, block.offset, bits)
    for index, spec in enumerate(specs):
        if coverage.elements(index) != spec.elements:
            raise WireError(f"the snapshot has {coverage.elements(index)} of {spec.elements} elements of {spec.name!r}")
        if spec.elements == 0:
            tensors[spec.name] = np.empty(0, bits_dtype(spec.dtype))
        hashes.check(index, tensors[spec.name], spec.name)
    if digest.value() != expected:
        raise DigestMismatch("the snapshot is not the state that its publisher signed")
    return tensors
