"""Weights that only a device holds: commits are all or nothing there too, and little leaves it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from aurora_p2p.delta import apply
from aurora_p2p.delta.block import Change, RawBlock
from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.device import Crossing, write_on
from aurora_p2p.delta.tensors import layout_id
from aurora_p2p.engine.hf import HfEngine
from aurora_p2p.engine.resident import Overlay
from aurora_p2p.errors import CheckpointError, DigestMismatch, WireError
from aurora_p2p.types import StateDigest, Version
from aurora_p2p.wire.manifest import TensorEntry
from tests.engine.drawing import draw_all

pytestmark = pytest.mark.slow  # imports transformers: 3 to 6 s
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def engine(request, run):
    engine = HfEngine(device=request.param, resident=True)
    engine.load(*run.snapshot())
    return engine


def test_no_copy_of_the_weights_stays_in_host_memory_and_the_model_computes_in_the_checkpoint_s_dtype(engine):
    held = engine._weights
    assert held._bits == {}
    assert {parameter.dtype for parameter in held.model.parameters()} == {torch.bfloat16}
    addresses = {parameter.data_ptr() for parameter in held.model.parameters()}
    assert addresses == {flat.data_ptr() for flat in held._flat.values()}


@pytest.mark.parametrize("kind", ["delta", "snapshot"])
def test_a_commit_that_fails_in_its_middle_is_rolled_back_on_the_device(engine, run, lease, kind):
    base, before = run.digest, draw_all(engine, lease)
    steps = [run.delta(share=0.5), run.delta(share=0.5)] if kind == "delta" else [run.snapshot()]
    for step in steps:
        engine.stage(*step)
    held, last = engine._weights, run.specs[-1].name
    if kind == "delta":
        # the last tensor is not what it was when the first of two deltas was staged: 23 others are written before it
        held._flat[last][:] ^= 1
        with pytest.raises(DigestMismatch, match=f"the weights in '{last}' are not the staged delta's base"):
            engine.commit(steps[-1].header.version, audit=True)
        held._flat[last][:] ^= 1
    else:
        pending = held._pending[0]
        pending.content[last][0] ^= 1  # host memory that went bad between stage and commit
        with pytest.raises(DigestMismatch):
            engine.commit(steps[-1].header.version, audit=False)
        pending.content[last][0] ^= 1
    assert engine.served == (Version(0), base)
    assert engine.audit().digest == base
    assert draw_all(engine, lease) == before
    assert engine.commit(steps[-1].header.version, audit=True).digest == run.digest


def test_memory_that_changed_under_the_engine_is_found_by_an_audit(engine):
    with torch.no_grad():
        next(engine._weights.model.parameters()).view(-1)[3] += 1.0
    with pytest.raises(DigestMismatch):
        engine.audit()


def test_a_damaged_body_changes_nothing(engine, run):
    base, delta = run.digest, run.delta()
    body = bytearray(delta.body.read_bytes())
    body[len(body) // 2] ^= 0x40
    delta.body.write_bytes(body)
    with pytest.raises((WireError, DigestMismatch)):
        engine.stage(*delta)
    with pytest.raises(CheckpointError, match="version 1 is not staged"):
        engine.commit(Version(1), audit=False)
    assert engine.audit().digest == base


def test_a_delta_may_be_staged_over_a_staged_snapshot(engine, run):
    run.delta()
    snapshot = run.snapshot()
    engine.stage(*snapshot)
    first, second = run.delta(), run.delta()
    engine.stage(*first)
    engine.stage(*second)
    assert engine.commit(second.header.version, audit=True).digest == run.digest


def test_a_stage_finds_the_same_base_before_and_in_the_middle_of_the_commit_of_what_it_follows(engine, run):
    held, first = engine._weights, run.delta(share=0.5)
    engine.stage(*first)
    second = run.delta(share=0.5)
    classes, base = ClassMap(second.header.class_map), StateDigest(second.header.base_digest)
    decode = held._decoder(list(held._pending), classes)
    for written in (0, 7, 24):  # of 24 tensors
        for change in held._pending[0].content.changes[:written]:
            assert write_on(change, held._flat[run.specs[change.tensor].name]) or written > 7
        staged = apply.stage_with(decode, run.specs, [second.body.read_bytes()], base, second.digest)
        assert staged.digest == run.digest


def test_of_an_audit_and_a_commit_hardly_anything_leaves_the_device(engine, run):
    held, delta = engine._weights, run.delta(share=0.01)
    held.crossing = Crossing()
    staged = engine.stage(*delta)
    per_block = 1  # whether the ranks fit
    assert held.crossing.bytes_off_device == 6 * staged.changed + per_block * len(held._pending[0].content.changes)
    held.crossing = Crossing()
    engine.commit(delta.header.version, audit=False)
    assert held.crossing.bytes_off_device <= 2 * len(run.specs)
    held.crossing = Crossing()
    engine.audit()
    assert held.crossing.bytes_off_device == 4 * 8 * len(run.specs)


def test_a_checkpoint_of_several_dtypes_is_refused_by_name(run):
    artifact = run.snapshot()
    specs = list(run.specs)
    specs[-1] = type(specs[-1])(specs[-1].name, "F32", specs[-1].shape)
    table = tuple(TensorEntry(spec, "full") for spec in specs)
    header = msgspec.structs.replace(artifact.header, tensors=table, layout=layout_id(specs, {}))
    with pytest.raises(CheckpointError, match=f"{specs[-1].name} is F32 in a checkpoint of BF16"):
        HfEngine(resident=True).load(header, artifact.body, artifact.digest)


def test_an_overlay_puts_queued_changes_over_blocks_in_their_order_and_leaves_the_memory_alone():
    rng = np.random.default_rng(3)
    elements = 3 * 2**19
    memory = torch.from_numpy(rng.integers(0, 2**15, elements).astype(np.int16))
    expected, steps = memory.clone(), []
    for _ in range(3):
        changes = []
        for offset, length in ((0, 2**19), (2**19 - 100, 2**19), (2**20 + 5, 2**18)):  # two straddle block borders
            places = np.sort(rng.choice(length, 500, replace=False)) + offset
            new = rng.integers(0, 2**15, 500).astype(np.uint16)
            changes.append(Change(0, places.astype(np.int64), new, new))
            expected[torch.from_numpy(places)] = torch.from_numpy(new.view(np.int16))
        steps.append(apply.Staged(tuple(changes), StateDigest(bytes(32)), 1500))
    overlay, before = Overlay(steps), memory.clone()
    for offset, length in ((0, 2**19), (2**19, 2**19), (2**20, 2**19), (1000, 2**19), (2**19 - 1, 3)):
        block = RawBlock(0, offset, length, 0, b"")
        assert torch.equal(overlay.over(block, memory[offset : offset + length]), expected[offset : offset + length])
    assert overlay.over(RawBlock(1, 0, 10, 0, b""), memory[:10]).data_ptr() == memory.data_ptr()
    assert torch.equal(memory, before)
