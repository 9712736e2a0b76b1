"""Checkpoints before and after a step: real optimizer steps, and 8B-like synthetic ones.

Real: bf16 weights of a 3.4 M-parameter Qwen3-style model (fp32 masters, AdamW); GRPO at lr 1e-6 (1.0 % of the elements
change per step), 3e-6 (2.9 %) and 1e-5 (8.3 %), supervised fine-tuning at 1e-4 (51.6 %).
Synthetic: normal weights of standard deviation 0.02 .. 0.04 whose fp32 masters lie anywhere in their bf16 rounding cell
(the long-run regime), moved by AdamW at lr 1e-6 under noise gradients with a small signal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.tensors import Bits

ROOT = Path(__file__).parents[1]
REAL = {
    "rl1e-6": ROOT / "tests/delta/data/rl1e-6_s39.npz",
    "rl3e-6": ROOT / "benchmarks/data/pair_rl3e-6_s24.npz",
    "rl1e-5": ROOT / "benchmarks/data/pair_rl1e-5_s24.npz",
    "sft1e-4": ROOT / "benchmarks/data/pair_sft1e-4_s6.npz",
}
SIGMAS = (0.02, 0.025, 0.03, 0.04)
LEARNING_RATE, MOMENTUM, SIGNAL = 1e-6, 0.9, 0.1
WARM_STEPS = 30
"""Steps with a learning rate of 0 in which AdamW's first moment settles."""

Floats = npt.NDArray[np.float32]


def real_pair(name: str) -> tuple[Bits, Bits]:
    """(base, new), uint16[n], of one of REAL."""
    with np.load(REAL[name]) as stored:
        base: Bits = stored["base"]
        new = base.copy()
        new[np.cumsum(stored["gap"].astype(np.int64)) - 1] ^= stored["xor"]
    return base, new


def synthetic_steps(elements: int, seed: int = 0) -> Iterator[Bits]:
    """The bf16 bits of an 8B-like model, step after step, for ever; uint16[elements], a new array each."""
    chance = np.random.default_rng(seed)
    quarter = -(-elements // len(SIGMAS))
    start = np.concatenate([chance.standard_normal(quarter, dtype=np.float32) * sigma for sigma in SIGMAS])[:elements]
    cell = chance.integers(-0x8000, 0x7FFF, elements)
    master = ((rounded(start).astype(np.int64) << 16) + cell).astype(np.uint32).view(np.float32).copy()
    moment, signal = np.zeros_like(master), (chance.standard_normal(elements) * SIGNAL).astype(np.float32)
    _step(master, moment, signal, np.float32(0), WARM_STEPS, seed)
    step = 0
    while True:
        yield rounded(master)
        step += 1
        _step(master, moment, signal, np.float32(LEARNING_RATE), 1, seed + 1000 * step)


def rounded(values: Floats) -> Bits:
    """float32 -> bf16 bit patterns, to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


@numba.njit(cache=True, nogil=True)
def _step(master: Floats, moment: Floats, signal: Floats, rate: np.float32, steps: int, seed: int) -> None:
    """AdamW whose second moment is that of unit noise plus the signal: u = m / sqrt(1 + s^2)."""
    np.random.seed(seed)
    for index in range(master.size):
        x, m, s = master[index], moment[index], signal[index]
        for _ in range(steps):
            m = MOMENTUM * m + (1 - MOMENTUM) * (np.random.standard_normal() + s)
            x -= rate * m / np.sqrt(1 + s * s)
        master[index], moment[index] = x, m
