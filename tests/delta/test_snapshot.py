from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_p2p.delta.coding import encode_block, encode_whole
from aurora_p2p.delta.digest import EMPTY, full_digest
from aurora_p2p.delta.encode import encode_snapshot
from aurora_p2p.delta.snapshot import read_snapshot
from aurora_p2p.errors import DigestMismatch, WireError
from aurora_p2p.types import TensorSpec


def test_a_snapshot_of_every_dtype_reads_back_bit_for_bit(every_dtype) -> None:
    encoder = encode_snapshot(every_dtype.specs, every_dtype.new)
    stream = b"".join(encoder)
    assert encoder.digest == full_digest(every_dtype.specs, every_dtype.new)
    assert encoder.changed == encoder.elements == sum(spec.elements for spec in every_dtype.specs)
    chunks = [stream[at : at + 1000] for at in range(0, len(stream), 1000)]
    read = read_snapshot(every_dtype.specs, chunks, encoder.digest)
    assert read.keys() == every_dtype.new.keys()
    for name, bits in every_dtype.new.items():
        assert read[name].dtype == bits.dtype
        assert np.array_equal(read[name], bits)
        assert read[name].flags.writeable


def test_a_snapshot_in_shards_of_any_order_is_the_same_state() -> None:
    spec = TensorSpec("w", "BF16", (1_100_000,))
    bits = np.random.default_rng(0).integers(0, 2**16, 1_100_000).astype(np.uint16)
    edges = [0, 1, 400_001, 900_000, 1_100_000]
    shards = [encode_whole(0, a, bits[a:b]) for a, b in pairwise(edges)]
    read = read_snapshot((spec,), reversed(shards), full_digest((spec,), {"w": bits}))
    assert np.array_equal(read["w"], bits)


def test_a_gap_an_overlap_a_delta_block_and_another_state_are_refused() -> None:
    spec = TensorSpec("w", "BF16", (100,))
    bits = np.arange(100, dtype=np.uint16)
    digest = full_digest((spec,), {"w": bits})
    whole, head = encode_whole(0, 0, bits), encode_whole(0, 0, bits[:99])
    middle = [encode_whole(0, 0, bits[:60]), encode_whole(0, 40, bits[40:80])]
    for stream in (
        [],
        [head],
        [whole, head],
        [whole, whole],
        middle,
        [encode_block(0, 0, bits, bits + np.uint16(1))[0]],
    ):
        with pytest.raises(WireError):
            read_snapshot((spec,), stream, digest)
    with pytest.raises(DigestMismatch):
        read_snapshot((spec,), [whole], EMPTY)


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=300), st.integers(0, 10**6))
def test_any_bytes_raise_unless_they_are_the_signed_state(junk: bytes, flip: int) -> None:
    spec = TensorSpec("w", "F32", (20,))
    bits = np.arange(20, dtype=np.uint32)
    digest = full_digest((spec,), {"w": bits})
    damaged = bytearray(encode_whole(0, 0, bits))
    damaged[flip // 8 % len(damaged)] ^= 1 << flip % 8
    for stream in (junk, bytes(damaged), bytes(damaged) + junk):
        with pytest.raises((WireError, DigestMismatch)):
            read_snapshot((spec,), [stream], digest)
