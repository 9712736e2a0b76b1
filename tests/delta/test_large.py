"""Tensors of more than 2**31 elements in memory: what nobody touches takes none."""

import numpy as np
import pytest

from aurora_p2p.delta.apply import stage, undo, write
from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.coding import encode_block
from aurora_p2p.delta.digest import EMPTY, RunningDigest
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, bits_dtype
from aurora_p2p.types import TensorSpec

ELEMENTS = 2**31 + BLOCK_ELEMENTS + 77
OFFSETS = (0, 2**31 - BLOCK_ELEMENTS, 2**31, 2**31 + BLOCK_ELEMENTS)
"""Blocks on both sides of where a 32-bit place ends; the last one is short."""


def zeros(path, dtype):
    """Mapped from a sparse file: neither memory nor disk, until something is written."""
    return np.asarray(np.memmap(path, bits_dtype(dtype), "w+", shape=(ELEMENTS,)))


@pytest.mark.parametrize("dtype", ["U8", "BF16", "F32", "F64"])
def test_changes_beyond_2_to_the_31_are_coded_written_and_undone(tmp_path, dtype):
    spec, base = TensorSpec("w", dtype, (ELEMENTS,)), zeros(tmp_path / "w", dtype)
    start, stream, after, places = EMPTY, [], RunningDigest(EMPTY), []
    for offset in OFFSETS:
        before = base[offset : offset + BLOCK_ELEMENTS]
        new = before.copy()
        new[[0, 5, -1]] = (3, 1, 200)
        coded, change = encode_block(0, offset, before, new, ClassMap(b"\x01"))
        after.change(spec, change.positions, change.old, change.new)
        stream.append(coded)
        places += [offset, offset + 5, offset + before.size - 1]
    staged = stage((spec,), stream, {"w": base}, start, after.value(), ClassMap(b"\x01"))
    write(staged, {"w": base}, (spec,))
    assert base[places].tolist() == [3, 1, 200] * len(OFFSETS)
    assert sum(np.count_nonzero(base[offset : offset + BLOCK_ELEMENTS]) for offset in OFFSETS) == len(places)
    undo(staged, {"w": base}, (spec,))
    assert not base[places].any()
