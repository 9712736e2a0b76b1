"""The transformers engine in this process: exact commits, seed-bound samples, all or nothing."""

from __future__ import annotations

import threading

import msgspec
import numpy as np
import pytest
import torch

from aurora_p2p.delta.tensors import layout_id
from aurora_p2p.engine import weights as weights_module
from aurora_p2p.engine.hf import HfEngine
from aurora_p2p.engine.model import write_checkpoint
from aurora_p2p.engine.tables import specs_of
from aurora_p2p.errors import CheckpointError, DigestMismatch, StoreError, WireError
from aurora_p2p.types import StateDigest, Version
from aurora_p2p.wire.manifest import TensorEntry
from tests.engine.drawing import draw_all

pytestmark = pytest.mark.slow  # imports transformers: 3 to 6 s


@pytest.fixture
def engine(run):
    engine = HfEngine(max_batch=64)
    engine.load(*run.snapshot())
    return engine


@pytest.mark.parametrize("kind", ["delta", "snapshot"])
def test_a_failure_in_the_middle_of_a_commit_rolls_everything_back(engine, run, lease, monkeypatch, kind):
    base, before = run.digest, draw_all(engine, lease)
    first = run.delta(share=0.5)
    second = run.delta(share=0.5) if kind == "delta" else run.snapshot()
    if kind == "delta":
        engine.stage(*first)
    engine.stage(*second)
    honest, reads = weights_module.tensor_bits, []

    def read_wrong_once(tensor):
        reads.append(tensor)
        bits = honest(tensor)
        return bits ^ bits.dtype.type(1) if len(reads) == 30 else bits

    monkeypatch.setattr(weights_module, "tensor_bits", read_wrong_once)
    # The snapshot is read back as one audit of 24 tensors: the wrong read is in the caller's audit after it.
    with pytest.raises(DigestMismatch):
        engine.commit(second.header.version, audit=True)
    assert len(reads) >= 30
    assert engine.served == (Version(0), base)
    assert engine.audit().digest == base
    assert draw_all(engine, lease) == before
    assert engine.commit(second.header.version, audit=True).digest == run.digest


def test_memory_that_changed_under_the_engine_is_noticed_and_not_committed_over(engine, run):
    delta = run.delta(share=1.0)
    engine.stage(*delta)
    held = engine._weights
    name = held.specs[3].name
    held._bits[name][0] ^= 1
    with pytest.raises(DigestMismatch, match=name):
        engine.commit(delta.header.version, audit=False)
    with torch.no_grad():
        held._parameters[name].view(-1)[0] += 1.0
    with pytest.raises(DigestMismatch):
        engine.audit()


def test_a_delta_on_another_base_is_refused(engine, run):
    run.delta()
    second = run.delta()
    with pytest.raises(DigestMismatch, match="base is version 1; version 0 is held"):
        engine.stage(*second)
    assert engine.audit().digest == engine.served.digest


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


def test_a_body_that_is_gone_is_a_store_error(engine, run):
    delta = run.delta()
    delta.body.unlink()
    with pytest.raises(StoreError):
        engine.stage(*delta)


def test_a_header_that_does_not_fit_its_model_is_refused_by_name(run):
    header, body, digest = run.snapshot()
    wrong = msgspec.structs.replace(run.config, hidden_size=64)
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight has shape \[264, 32\], not \[264, 64\]"):
        HfEngine().load(msgspec.structs.replace(header, model=wrong), body, digest)
    with pytest.raises(CheckpointError, match=r"norm.weight is missing"):
        HfEngine().load(msgspec.structs.replace(header, tensors=header.tensors[:-1]), body, digest)
    with pytest.raises(CheckpointError, match="layout"):
        HfEngine().load(msgspec.structs.replace(header, layout=bytes(32)), body, digest)
    with pytest.raises(DigestMismatch):
        HfEngine().load(header, body, StateDigest(bytes(32)))


def test_a_model_larger_than_memory_is_refused_before_anything_is_read(run):
    huge = msgspec.structs.replace(run.config, vocab_size=1 << 20, hidden_size=1 << 15, layers=64)
    artifact = run.snapshot()
    specs = specs_of(huge)
    table = tuple(TensorEntry(spec, "full") for spec in specs)
    header = msgspec.structs.replace(artifact.header, model=huge, tensors=table, layout=layout_id(specs, {}))
    with pytest.raises(CheckpointError, match=r"needs .* GiB of memory, .* GiB are available"):
        HfEngine().load(header, artifact.body, artifact.digest)


def test_log_probabilities_agree_with_a_forward_without_cache(engine, run, lease):
    _, samples, prompts = lease
    model = engine._weights.model
    for temperature in (0.7, 1.0):
        for index, one in draw_all(engine, lease, temperature=temperature).items():
            prompt = prompts[samples(12)[index].prompt_index]
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([prompt + one.tokens]), use_cache=False).logits[0]
            expected = (logits / temperature).log_softmax(-1)[len(prompt) - 1 : -1]
            picked = expected.gather(1, torch.tensor(one.tokens)[:, None])[:, 0]
            assert np.allclose(picked.numpy(), one.logprobs, atol=1e-4)


def test_a_sample_does_not_depend_on_its_batch(engine, lease):
    sampling, samples, prompts = lease
    together = draw_all(engine, lease, count=24)
    for index, sample in enumerate(samples(24)):
        (alone,) = [
            one for step in engine.generate(sampling(), prompts, [sample], threading.Event()) for one in step.finished
        ]
        assert alone.tokens == together[index].tokens
        assert alone.finish == together[index].finish
        assert np.allclose(alone.logprobs, together[index].logprobs, atol=1e-5)
    engine.max_batch = 5
    assert {i: one.tokens for i, one in draw_all(engine, lease, count=24).items()} == {
        i: one.tokens for i, one in together.items()
    }


def test_a_sample_ends_at_its_stop_token_or_its_length(engine, lease):
    every_other = tuple(range(0, 264, 24))
    finished = draw_all(engine, lease, count=60, stop=every_other, max_tokens=12).values()
    assert {one.finish for one in finished} == {"stop", "length"}
    for one in finished:
        stops = [token in every_other for token in one.tokens]
        assert not any(stops[:-1])
        assert stops[-1] == (one.finish == "stop")
        assert len(one.logprobs) == len(one.tokens) <= 12
        assert one.finish == "stop" or len(one.tokens) == 12


def test_generation_ends_between_two_tokens_when_told(engine, lease):
    sampling, samples, prompts = lease
    stop, steps = threading.Event(), 0
    for _ in engine.generate(sampling(max_tokens=50, stop=()), prompts, samples(6), stop):
        steps += 1
        stop.set()
    assert steps == 1


def test_requests_that_do_not_fit_the_model_are_refused(engine, lease):
    sampling, samples, prompts = lease
    wrong = [
        (msgspec.structs.replace(sampling(), vocabulary=300), prompts, samples(1)),
        (sampling(max_tokens=126), prompts, samples(1)),
        (sampling(), [(264,)], samples(1)),
        (sampling(), prompts[:1], samples(3)),
    ]
    for request in wrong:
        with pytest.raises(WireError):
            next(engine.generate(*request, threading.Event()))


def test_nothing_is_served_before_a_model_is_loaded(lease, run):
    engine = HfEngine()
    with pytest.raises(CheckpointError, match="no model is loaded"):
        engine.stage(*run.delta())
    with pytest.raises(CheckpointError):
        engine.audit()


def test_the_same_weights_from_a_checkpoint_folder_give_plain_transformers_logits(engine, run, tmp_path):
    from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

    write_checkpoint(tmp_path / "checkpoint", run.config, run.specs, run.bits)
    reference = Qwen3ForCausalLM.from_pretrained(tmp_path / "checkpoint", dtype=torch.float32).eval()
    tokens = torch.tensor([[1, 2, 3, 4]])
    with torch.inference_mode():
        assert torch.equal(reference(tokens).logits, engine._weights.model(tokens).logits)
