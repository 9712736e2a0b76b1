"""The canonical tensor table: names, dtypes, shapes, bit patterns, blocks.

A checkpoint is a sequence of TensorSpecs sorted by name, each with its own storage; a tied tensor is stored once and
named again in `aliases`. Here a tensor is its Bits: the flat bit patterns, never floats, so that -0, NaN payloads and
every dtype survive. Nothing here imports numba.

    tensor identity  BLAKE3(F(name, dtype, dims)), first 8 bytes as little-endian uint64
    layout           BLAKE3(F("layout", count, name, dtype, dims, ..., alias, target, ...)), aliases sorted by name

F length-prefixes each field (crypto.sign.fields); dims and count are little-endian uint64s, concatenated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from aurora_p2p.crypto.sign import fields
from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.types import DTYPES, TensorSpec

Bits: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
"""1-D, C-contiguous, unsigned, of the dtype's item size: the bit patterns of a tensor in row-major order."""
Positions: TypeAlias = npt.NDArray[np.int64]
"""Element indices in a tensor, strictly ascending."""

BLOCK_ELEMENTS = 2**19
"""Most elements of one block: 1 MiB of bf16, small enough to encode one block while the last is on the wire."""
_BITS_DTYPES: dict[int, np.dtype[Any]] = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}


def bits_dtype(dtype: str) -> np.dtype[Any]:
    """The unsigned numpy dtype of a checkpoint dtype's bit patterns. Raises WireError for an unknown name."""
    if dtype not in DTYPES:
        raise WireError(f"unknown tensor dtype {dtype[:16]!r}")
    return _BITS_DTYPES[DTYPES[dtype]]


def blocks(elements: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of each block of a tensor, in elements; none for an empty tensor."""
    for offset in range(0, elements, BLOCK_ELEMENTS):
        yield offset, min(BLOCK_ELEMENTS, elements - offset)


def bits_of(spec: TensorSpec, checkpoint: Mapping[str, Bits]) -> Bits:
    """The tensor's Bits. Raises ShapeError when they are absent or are not what the spec says."""
    bits = checkpoint.get(spec.name)
    if bits is None:
        raise ShapeError(f"the checkpoint lacks the tensor {spec.name!r}")
    if bits.dtype != bits_dtype(spec.dtype) or bits.shape != (spec.elements,) or not bits.flags.c_contiguous:
        raise ShapeError(
            f"{spec.name!r} is {bits.dtype}{list(bits.shape)}, not the flat bits of {spec.elements} elements"
        )
    return bits


def tensor_id(spec: TensorSpec) -> int:
    """The tensor's identity in the state digest: 64 bits of a hash of its name, dtype and shape."""
    return int.from_bytes(blake3(fields(*_spec_fields(spec))).digest(8), "little")


def layout_id(specs: Sequence[TensorSpec], aliases: Mapping[str, str] = {}) -> bytes:
    """32-byte identity of a whole table; `aliases` maps each tied name to the tensor that stores it.

    Raises WireError when names repeat or are unsorted, a dtype is unknown, or an alias shadows or misses a tensor.
    """
    names = [spec.name for spec in specs]
    if any(first >= second for first, second in pairwise(names)):
        raise WireError("the tensor table is not sorted by name, or a name repeats")
    if any(alias in names or target not in names for alias, target in aliases.items()):
        raise WireError("an alias must be a new name for a tensor of the table")
    parts = [b"layout", len(specs).to_bytes(8, "little")]
    for spec in specs:
        bits_dtype(spec.dtype)
        parts += _spec_fields(spec)
    for alias in sorted(aliases):
        parts += [alias.encode(), aliases[alias].encode()]
    return blake3(fields(*parts)).digest()


def _spec_fields(spec: TensorSpec) -> list[bytes]:
    return [spec.name.encode(), spec.dtype.encode(), b"".join(side.to_bytes(8, "little") for side in spec.shape)]


class Coverage:
    """Which elements of each tensor blocks have claimed so far: no element twice."""

    def __init__(self) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}

    def claim(self, tensor: int, offset: int, length: int) -> None:
        """Raises WireError when an element of the span is claimed already."""
        spans, span = self._spans.setdefault(tensor, []), (offset, offset + length)
        index = bisect_left(spans, span)
        if (index and spans[index - 1][1] > span[0]) or (index < len(spans) and spans[index][0] < span[1]):
            raise WireError(f"two blocks cover elements of tensor {tensor} from {offset}")
        spans.insert(index, span)

    def elements(self, tensor: int) -> int:
        """Number of elements claimed."""
        return sum(end - start for start, end in self._spans.get(tensor, ()))
