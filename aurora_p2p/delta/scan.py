"""Which elements changed: compared as bits by numpy at memory speed, listed by a kernel (3x as fast as flatnonzero)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.jit import kernel
from aurora_p2p.delta.tensors import Bits, Positions


def changed_positions(base: Bits, new: Bits) -> Positions:
    """Indices at which two Bits of the same shape and dtype differ."""
    differs = np.zeros(-(-new.size // 8) * 8, np.bool_)
    np.not_equal(base, new, out=differs[: new.size])
    found = np.empty(int(np.count_nonzero(differs)) + 1, np.int64)
    _list(differs.view(np.uint64), found)
    return found[:-1]


@kernel
def _list(words: npt.NDArray[np.uint64], found: Positions) -> None:
    """`words` holds eight 0-or-1 bytes each; `found` has room for one index more than there are ones."""
    count = np.int64(0)
    for index in range(words.size):
        word = words[index]
        if word:
            for byte in range(8):
                found[count] = 8 * index + byte
                count += np.int64((word >> np.uint64(8 * byte)) & np.uint64(1))
