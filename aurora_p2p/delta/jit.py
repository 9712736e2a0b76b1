"""The one way a kernel is compiled: without the GIL, without bounds checks, cached on disk per machine.

A kernel therefore trusts its caller: every index is bounded before it is called, or checked inside it. Kernels take
only freshly made uint64 and int64 arrays, so each has exactly one signature and `warm` can compile them all. Never mix
uint64 with int64 in a kernel: numba's result is float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile `function` on its first call; other kernels of the same file may call it."""
    compiled = numba.njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")(function)
    return cast(F, compiled)
