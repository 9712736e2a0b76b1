"""More than 2**31 elements in one tensor, in sparse files: 64-bit places throughout, memory of a few blocks."""

import json
import os
import sys

import numpy as np
import pytest

from aurora_p2p.artifact.container import DeltaFile
from aurora_p2p.artifact.layers import Layer
from aurora_p2p.artifact.tensorfiles import TensorFiles

ELEMENTS = 2**31 + 2**20 + 5
PLACES = (0, 2**31 - 1, 2**31, 2**31 + 1, ELEMENTS - 1)
BLOCKS_MIB = 160
"""Far below the 2 GiB of the tensor, above what an interpreter with numba and the blocks in work take beside it."""


def sparse(path, changed):
    header = json.dumps({"w": {"dtype": "U8", "shape": [ELEMENTS], "data_offsets": [0, ELEMENTS]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + ELEMENTS)
        for place in changed:
            file.seek(8 + len(header) + place)
            file.write(b"\x07")


def peak_mib(*words):
    """Peak memory of `aurora-host delta ...`, which must end well."""
    command = [sys.executable, "-m", "aurora_p2p.host.cli", *map(str, words)]
    _, status, usage = os.wait4(os.posix_spawn(sys.executable, command, os.environ), 0)
    assert status == 0
    return usage.ru_maxrss / 1024


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_places_beyond_2_to_the_31_are_encoded_and_applied_within_the_memory_of_a_few_blocks(tmp_path):
    base, new, delta = tmp_path / "base", tmp_path / "new", tmp_path / "d"
    sparse(base, ())
    sparse(new, PLACES)
    idle = peak_mib("delta", "encode", "--help")
    assert peak_mib("delta", "encode", base, new, "-o", delta) < idle + BLOCKS_MIB
    assert peak_mib("delta", "verify", delta, base) < idle + BLOCKS_MIB
    with DeltaFile.open(delta) as file, TensorFiles.open(base) as files:
        assert file.foot.changed == len(PLACES)
        assert file.nbytes < 2000
        after = Layer(files, file.stream)
        for place in PLACES:
            start = max(place - 3, 0)
            length = min(7, ELEMENTS - start)
            expected = np.isin(np.arange(start, start + length), PLACES) * 7
            assert after.read("w", start, length).tolist() == expected.tolist()
