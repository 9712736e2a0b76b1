"""The recipe, for real and in small: warm-up, asynchronous steps over the codec and the engine, held-out accuracy."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_snapshot
from aurora_p2p.delta.tensors import layout_id
from aurora_p2p.engine.hf import HfEngine
from aurora_p2p.engine.model import build_model, load_bits, read_checkpoint
from aurora_p2p.errors import DigestMismatch, StaleError
from aurora_p2p.train.evaluate import RecordedStep, Weights, lr_zero_control, sampled_accuracy
from aurora_p2p.train.loop import LEARN, SPARSE, AsyncRun, GrpoTrainer, RunOptions, StepRecord, TrainOptions
from aurora_p2p.train.pretrain import MODEL, Recipe, pretrained
from aurora_p2p.train.tasks import SORT_DIGITS, Tokens
from aurora_p2p.types import NO_BASE, RunId, Seq, SwarmId, Version
from aurora_p2p.wire.control import LeaseSample
from aurora_p2p.wire.manifest import Header, TensorEntry
from aurora_p2p.wire.trainer import Rollout, SubmitPrompts

pytestmark = pytest.mark.slow


def header_of(weights: Weights, version: Version) -> Header:
    return Header(
        format=1,
        swarm=SwarmId("x" * 52),
        run=RunId(bytes(16)),
        version=version,
        seq=Seq(1),
        nonce=bytes(16),
        kind="snapshot",
        base_version=NO_BASE,
        base_manifest=b"",
        base_digest=b"",
        layout=layout_id(weights.specs),
        segment_bytes=1024,
        size_bound=1 << 20,
        class_map=b"",
        tensors=tuple(TensorEntry(spec, "full") for spec in weights.specs),
        model=weights.config,
    )
