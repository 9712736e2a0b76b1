"""The one way a kernel is compiled: without the GIL, without bounds checks, cached on disk per machine.

A kernel therefore trusts its caller: every index is bounded before it is called, or checked inside it. Each kernel has
exactly one signature, so that `warm` can compile them all: it takes Python ints, addresses of arrays that are only read
(views and read-only arrays would be other types) and freshly made arrays. Never mix uint64 with int64 in arithmetic:
numba's result is float64.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import llvmlite.binding
import numba
import platformdirs
from blake3 import blake3

_SOURCES = Path(__file__).parent


def cache_name() -> str:
    """Named by the sources, because numba looks at one file's date alone and a kernel has pieces of others in it."""
    hasher = blake3(numba.__version__.encode())
    for source in sorted(_SOURCES.rglob("*.py")):
        hasher.update(source.read_bytes())
    return f"kernels-{hasher.hexdigest(8)}"


def cache_folder() -> Path:
    """Where compiled kernels are kept: beside the sources if they can be written to, else in the user's cache."""
    name = cache_name()
    beside = _SOURCES / "__pycache__" / name
    if beside.is_dir() or os.access(_SOURCES, os.W_OK):
        return beside
    return Path(platformdirs.user_cache_dir("aurora")) / name


if not os.environ.get("NUMBA_CACHE_DIR"):
    numba.config.CACHE_DIR = str(cache_folder())  # pyright: ignore[reportAttributeAccessIssue]


def compiled_mark() -> Path:
    """The file that says that every kernel is in the cache, for this processor: numba compiles anew for another."""
    folder = Path(str(numba.config.CACHE_DIR))  # pyright: ignore[reportAttributeAccessIssue]
    return folder / f"{cache_name()}-{llvmlite.binding.get_host_cpu_name()}.compiled"


F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile `function` on its first call; other kernels of the same file may call it."""
    compiled = numba.njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")(function)
    return cast(F, compiled)


def inlined(function: F) -> F:
    """A piece of a kernel: compiled into each kernel that calls it."""
    return cast(F, numba.njit(forceinline=True, error_model="numpy")(function))
