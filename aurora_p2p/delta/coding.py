"""What the payload of a block is: five modes, chosen block by block by exact size.

    RAW      `length` bit patterns, little-endian          no base needed
    DENSE    `length` elements as byte planes (dense.py)   no base needed
    CLASSES  changes of 16-bit elements (classes/), with the class map of the artifact's header
    ULP      changes of other elements as steps of ordered keys (gaps.py): floats
    WRAP     changes as two's complement differences (gaps.py): integers, where ULP is not as good

A block needs nothing but the table, its base and the class map: it carries no dtype. An unchanged block is no bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aurora_p2p.delta import dense, gaps
from aurora_p2p.delta.block import CLASSES, DENSE, RAW, ULP, WRAP, Change, RawBlock, check_block, frame
from aurora_p2p.delta.classes import block as classes_block
from aurora_p2p.delta.classes.map import ONE_CLASS, ClassMap
from aurora_p2p.delta.scan import changed_positions
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, Bits, bits_dtype
from aurora_p2p.delta.ulp import crosses_sign
from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.types import TensorSpec

DEAR = 4
"""Changes that take more than one part in DEAR of the raw size are weighed against the other modes."""
SMALL_BYTES = 1 << 14
"""Raw size up to which every choice is weighed: it costs next to nothing."""


def encode_whole(tensor: int, offset: int, new: Bits) -> bytes:
    """One framed block of elements that need no base. Raises ShapeError."""
    if new.size > BLOCK_ELEMENTS:
        raise ShapeError(f"a block has 1 to {BLOCK_ELEMENTS} elements, not {new.size}")
    mode, payload = _whole(new)
    return frame(RawBlock(tensor, offset, new.size, mode, payload))


def encode_block(
    tensor: int, offset: int, base: Bits, new: Bits, classes: ClassMap = ONE_CLASS
) -> tuple[bytes, Change]:
    """(one framed block, or nothing if nothing changed; what changed).

    base, new: the block's own elements, at most BLOCK_ELEMENTS, before and after; offset: its first element in the
    tensor. Raises ShapeError when they do not match.
    """
    if base.shape != new.shape or base.dtype != new.dtype or base.ndim != 1:
        raise ShapeError(f"a block of {base.dtype}{base.shape} cannot become {new.dtype}{new.shape}")
    if new.size > BLOCK_ELEMENTS:
        raise ShapeError(f"a block has 1 to {BLOCK_ELEMENTS} elements, not {new.size}")
    if new.itemsize == 2:
        mode, (payload, (where, old, after)) = CLASSES, classes_block.encode(base, new, classes, offset)
    else:
        inside = changed_positions(base, new)
        mode, payload, old, after = ULP, b"", base[inside], new[inside]
        where = inside + offset
    change = Change(tensor, where, old, after)
    if not where.size:
        return b"", change
    if mode == ULP:
        payload = gaps.encode(where - offset, old, after, ulp=True)
    mode, payload = cheapest(mode, payload, change, offset, lambda: new, new.nbytes)
    return frame(RawBlock(tensor, offset, new.size, mode, payload)), change


def cheapest(
    mode: int, payload: bytes, change: Change, offset: int, new: Callable[[], Bits], raw_bytes: int
) -> tuple[int, bytes]:
    """The smallest of a payload and, when it is DEAR, its alternatives. offset, raw_bytes and new are the block's."""
    if len(payload) * DEAR <= raw_bytes and raw_bytes > SMALL_BYTES:
        return mode, payload
    choices = [(mode, payload), _whole(new())]
    if crosses_sign(change.old, change.new):
        choices.append((WRAP, gaps.encode(change.positions - offset, change.old, change.new, ulp=False)))
    return min(choices, key=lambda choice: len(choice[1]))


def _whole(new: Bits) -> tuple[int, bytes]:
    coded = dense.encode(new)
    if len(coded) < new.nbytes:
        return DENSE, coded
    return RAW, new.astype(new.dtype.newbyteorder("<"), copy=False).tobytes()


def whole_bits(block: RawBlock, spec: TensorSpec) -> Bits:
    """All elements of a block that needs no base (maybe read-only). Raises WireError when it is none, or has the wrong
    size."""
    dtype = bits_dtype(spec.dtype)
    if block.mode == DENSE:
        return dense.decode(block.payload, block.length, dtype)
    if block.mode != RAW or len(block.payload) != block.length * dtype.itemsize:
        raise WireError(f"a block of {spec.name!r} is not {block.length} whole elements")
    return np.frombuffer(block.payload, dtype)


def decode_block(block: RawBlock, spec: TensorSpec, base: Bits, classes: ClassMap = ONE_CLASS) -> Change:
    """What the block changes.

    base: Bits of the WHOLE tensor, never written. spec must be the table's entry number block.tensor.
    Raises WireError, ShapeError when base does not fit the spec. Without a base, use whole_bits.
    """
    check_block(block, spec)
    if base.shape != (spec.elements,) or base.dtype != bits_dtype(spec.dtype):
        raise ShapeError(f"the base of {spec.name!r} is {base.dtype}{base.shape}")
    before = base[block.offset : block.offset + block.length]
    if block.mode in (RAW, DENSE):
        new = whole_bits(block, spec)
        where = changed_positions(before, new)
        return Change(block.tensor, where + block.offset, before[where], new[where])
    if block.mode == CLASSES and base.itemsize == 2:
        where, old, after = classes_block.decode(block.payload, before, classes, block.offset)
        return Change(block.tensor, where, old, after)
    if block.mode in (WRAP, ULP):
        where, old, after = gaps.decode(block.payload, before, ulp=block.mode == ULP)
    else:
        raise WireError(f"block mode {block.mode} is not known for {spec.dtype}")
    return Change(block.tensor, where + block.offset, old, after)
