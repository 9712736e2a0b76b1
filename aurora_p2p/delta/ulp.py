"""Steps between bit patterns: how far a changed element moved, and back.

    wrap  step = new - old                       in two's complement of the item's width: integers, bool
    ulp   step = key(new) - key(old), likewise   key(u) = u for a clear sign bit, else -1 - (u without its sign bit)

key() orders IEEE bit patterns as the numbers they stand for, so one optimizer step is mostly a step of +-1 ULP. It is
its own inverse on bits, and both step kinds are bijections: every pattern (-0, Inf, NaN payloads) survives. The two
differ in magnitude only where a change crosses the sign bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.tensors import Bits


def ordered(bits: Bits) -> Bits:
    """key() of each element as two's complement bits of the same width; its own inverse."""
    sign_bit = bits.itemsize * 8 - 1
    return bits ^ ((bits >> bits.dtype.type(sign_bit)) * bits.dtype.type((1 << sign_bit) - 1))


def crosses_sign(old: Bits, new: Bits) -> bool:
    """Whether any element's sign bit changed: only then do wrap and ulp steps differ in magnitude."""
    return bool(((old ^ new) >> old.dtype.type(old.itemsize * 8 - 1)).any())


def step_between(old: Bits, new: Bits, *, ulp: bool) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint64]]:
    """(negative, magnitude) of each step; magnitude is 1 .. 2**(width - 1) for elements that differ."""
    step = ordered(new) - ordered(old) if ulp else new - old
    negative = (step >> step.dtype.type(step.itemsize * 8 - 1)).astype(np.bool_)
    return negative, np.where(negative, ~step + step.dtype.type(1), step).astype(np.uint64)


def step_from(old: Bits, negative: npt.NDArray[np.bool_], magnitude: npt.NDArray[np.uint64], *, ulp: bool) -> Bits:
    """The bits that `step_between` came from; magnitudes are 1 .. 2**(width - 1)."""
    size: npt.NDArray[Any] = magnitude.astype(old.dtype)
    step = np.where(negative, ~size + old.dtype.type(1), size)
    return ordered(ordered(old) + step) if ulp else old + step
