"""Weights of any version without its history: what a trainer that may die at any moment publishes.

Version v has base + (v + phase) // PERIOD, with a random phase of each element: from one version to the next about one
element in PERIOD moves by one ULP, and whoever knows the number knows every bit. 90,000 parameters, 180 KB.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.tensors import Bits
from aurora_p2p.engine.tables import specs_of
from aurora_p2p.wire.manifest import ModelConfig

VOCABULARY = 264
CONFIG = ModelConfig(
    architecture="qwen3",
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=128,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    max_positions=512,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    attention_bias=False,
    eos_tokens=(258,),
    pad_token=256,
)
SPECS = specs_of(CONFIG)
PERIOD = 100
"""About 1 % of the bf16 elements change per step: what RL at a usual learning rate does."""


@lru_cache(maxsize=1)
def _start() -> dict[str, tuple[Bits, Bits]]:
    """Base bits, of magnitudes around 0.25, and phases."""
    rng, start = np.random.default_rng(2026), {}
    for spec in SPECS:
        values = rng.normal(0.0, 0.25, spec.elements).astype(np.float32)
        base = (values.view(np.uint32) >> 16).astype(np.uint16)
        start[spec.name] = (base, rng.integers(0, PERIOD, spec.elements).astype(np.uint16))
    return start


def weights_at(version: int) -> dict[str, Bits]:
    """The checkpoint of a version; new arrays. Finite for at least a million versions."""
    return {
        name: (base + ((phase.astype(np.uint32) + version) // PERIOD).astype(np.uint16))
        for name, (base, phase) in _start().items()
    }


@lru_cache(maxsize=4096)
def digest_at(version: int) -> str:
    """What a manifest of that version must name, hex."""
    return full_digest(SPECS, weights_at(version)).hex()
