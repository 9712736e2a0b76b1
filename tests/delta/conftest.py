"""Pairs of checkpoints before and after a step, for every dtype and density; kernels compiled before any test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from aurora_p2p.delta.tensors import Bits, bits_dtype
from aurora_p2p.delta.warm import main as compile_kernels
from aurora_p2p.types import DTYPES, TensorSpec


@dataclass(frozen=True)
class Step:
    specs: tuple[TensorSpec, ...]
    base: dict[str, Bits]
    new: dict[str, Bits]


MakeStep = Callable[..., Step]


def _step(dtype: str, elements: int, density: float, seed: int) -> tuple[Bits, Bits]:
    """Uniform random bit patterns (every NaN payload, -0, Inf); steps of a few units, some to any other pattern."""
    rng = np.random.default_rng(seed)
    kind = bits_dtype(dtype)
    base = rng.integers(0, 256, elements * kind.itemsize, np.uint8).view(kind)
    moved = base + (rng.geometric(0.8, elements) * rng.choice((-1, 1), elements)).astype(kind)
    far = rng.integers(0, 256, elements * kind.itemsize, np.uint8).view(kind)
    new = np.where(rng.random(elements) < 0.1, far, moved)
    return base, np.where(rng.random(elements) < density, new, base)


@pytest.fixture(scope="session")
def make_step() -> MakeStep:
    compile_kernels()

    def make(shapes: dict[str, tuple[str, tuple[int, ...]]], density: float, seed: int) -> Step:
        specs = tuple(TensorSpec(name, dtype, shape) for name, (dtype, shape) in sorted(shapes.items()))
        pairs = {
            spec.name: _step(spec.dtype, spec.elements, density, seed + number) for number, spec in enumerate(specs)
        }
        return Step(specs, {name: pair[0] for name, pair in pairs.items()}, {n: pair[1] for n, pair in pairs.items()})

    return make


@pytest.fixture(scope="session")
def every_dtype(make_step: MakeStep) -> Step:
    """One tensor of each dtype, a 0-d tensor and an empty one; one element in seven changed."""
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {f"t.{dtype}": (dtype, (9, 61)) for dtype in DTYPES}
    return make_step(shapes | {"empty": ("F32", (0, 7)), "scalar": ("I64", ())}, 0.15, 1)
