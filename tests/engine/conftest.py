"""A tiny run: a model, and the artifacts that publish its versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from aurora_p2p.delta.classes.map import learn
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta, encode_snapshot
from aurora_p2p.delta.tensors import Bits, layout_id
from aurora_p2p.engine.tables import specs_of
from aurora_p2p.types import NO_BASE, RunId, Seq, StateDigest, SwarmId, TensorSpec, Version
from aurora_p2p.wire.control import LeaseSample, Sampling
from aurora_p2p.wire.manifest import Header, ModelConfig, TensorEntry

VOCABULARY = 264
CONFIG = ModelConfig(
    architecture="qwen3",
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    max_positions=128,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    attention_bias=False,
    eos_tokens=(258,),
    pad_token=256,
)
PROMPTS = ((5, 6, 7), (8, 9, 10), (11, 12, 13, 14, 15))


@dataclass(frozen=True)
class Artifact:
    header: Header
    body: Path
    digest: StateDigest

    def __iter__(self):
        return iter((self.header, self.body, self.digest))


@dataclass
class Run:
    """The publisher's side. `bits` are of the newest version."""

    folder: Path
    config: ModelConfig = CONFIG
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    version: int = -1
    specs: list[TensorSpec] = field(default_factory=list)
    bits: dict[str, Bits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.specs = specs_of(self.config)
        self.bits = {spec.name: self._random(spec) for spec in self.specs}

    def _random(self, spec: TensorSpec) -> Bits:
        centre, width = (1.0, 0.1) if "norm" in spec.name else (0.0, 0.25)
        values = self.rng.normal(centre, width, spec.elements).astype(np.float32)
        return (values.view(np.uint32) >> 16).astype(np.uint16)

    @property
    def digest(self) -> StateDigest:
        return full_digest(self.specs, self.bits)

    def snapshot(self) -> Artifact:
        self.version += 1
        return self._publish("snapshot", encode_snapshot(self.specs, self.bits), NO_BASE, b"")

    def delta(self, share: float = 0.05) -> Artifact:
        """Move a share of the weights by a few ULP and publish it."""
        base, base_digest = self.bits, self.digest
        self.bits = {}
        for name, old in base.items():
            moved = self.rng.random(old.size) < share
            self.bits[name] = np.where(moved, old + self.rng.integers(1, 20, old.size), old).astype(np.uint16)
        self.version += 1
        classes = learn([(base[name], self.bits[name]) for name in base])
        encoder = encode_delta(self.specs, base, self.bits, base_digest, classes)
        return self._publish("delta", encoder, Version(self.version - 1), base_digest, classes.thresholds)

    def _publish(self, kind, encoder, base_version: Version, base_digest: bytes, class_map: bytes = b"") -> Artifact:
        body = self.folder / f"{kind}-{self.version}"
        body.write_bytes(b"".join(encoder))
        snapshot = kind == "snapshot"
        header = Header(
            format=1,
            swarm=SwarmId("1" * 52),
            run=RunId(bytes(16)),
            version=Version(self.version),
            seq=Seq(self.version),
            nonce=bytes(16),
            kind=kind,
            base_version=base_version,
            base_manifest=b"" if snapshot else bytes(32),
            base_digest=base_digest,
            layout=layout_id(self.specs, {}),
            segment_bytes=1024,
            size_bound=1 << 30,
            class_map=class_map,
            tensors=tuple(TensorEntry(spec, "full") for spec in self.specs) if snapshot else (),
            model=self.config if snapshot else None,
        )
        return Artifact(header, body, encoder.digest)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def sampling(*, temperature: float = 1.0, max_tokens: int = 8, stop: tuple[int, ...] = (258,)) -> Sampling:
    return Sampling(temperature, max_tokens, VOCABULARY, stop)


def samples(count: int, prompts: int = len(PROMPTS)) -> tuple[LeaseSample, ...]:
    return tuple(LeaseSample(i % prompts, i // prompts, 1_000_003 * (i + 1), i % prompts) for i in range(count))


@pytest.fixture
def lease():
    """(sampling(...), samples(n), PROMPTS) as a test needs them."""
    return sampling, samples, PROMPTS
