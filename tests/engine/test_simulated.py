"""The simulated engine in this process: the weights are real, the tokens are invented."""

from __future__ import annotations

import math
import subprocess
import sys
import threading

import msgspec
import pytest

from aurora_p2p.engine.names import DEVICES, rate_of
from aurora_p2p.engine.simulated import SimulatedEngine
from aurora_p2p.errors import CheckpointError, DigestMismatch, StoreError, UsageError, WireError
from aurora_p2p.types import StateDigest, Version
from tests.engine.drawing import draw_all

FAST = 1e6


@pytest.fixture
def engine(run):
    engine = SimulatedEngine(FAST)
    engine.load(*run.snapshot())
    return engine


def test_a_commit_whose_audit_fails_is_undone(engine, run):
    base, first, second = run.digest, run.delta(), run.delta()
    engine.stage(*first)
    engine.stage(*second)
    held = engine._weights
    changed = {held.specs[change.tensor].name for one in held._pending for change in one.content.changes}
    touched = next(name for name in changed if held._bits[name].size > 100)
    positions = {int(p) for one in held._pending for change in one.content.changes for p in change.positions}
    untouched = next(place for place in range(held._bits[touched].size) if place not in positions)
    held._bits[touched][untouched] ^= 1  # memory that changed where the delta does not look
    with pytest.raises(DigestMismatch):
        engine.commit(second.header.version, audit=True)
    held._bits[touched][untouched] ^= 1
    assert engine.served == (Version(0), base)
    assert engine.audit().digest == base
    assert engine.commit(second.header.version, audit=True).digest == run.digest


def test_a_delta_on_another_base_and_a_damaged_body_change_nothing(engine, run):
    base, first, second = run.digest, run.delta(), run.delta()
    with pytest.raises(DigestMismatch, match="base is version 1; version 0 is held"):
        engine.stage(*second)
    body = bytearray(first.body.read_bytes())
    body[len(body) // 2] ^= 0x40
    first.body.write_bytes(body)
    with pytest.raises((WireError, DigestMismatch)):
        engine.stage(*first)
    first.body.unlink()
    with pytest.raises(StoreError):
        engine.stage(*first)
    with pytest.raises(CheckpointError, match="version 1 is not staged"):
        engine.commit(Version(1), audit=False)
    assert engine.audit().digest == base


def test_a_header_that_does_not_fit_its_model_is_refused_by_name(run):
    header, body, digest = run.snapshot()
    engine = SimulatedEngine(FAST)
    wrong = msgspec.structs.replace(run.config, hidden_size=64)
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight has shape \[264, 32\], not \[264, 64\]"):
        engine.load(msgspec.structs.replace(header, model=wrong), body, digest)
    with pytest.raises(DigestMismatch):
        engine.load(header, body, StateDigest(bytes(32)))
    with pytest.raises(CheckpointError, match="no model is loaded"):
        engine.audit()


def test_a_sample_follows_from_weights_and_seed_and_not_from_its_batch(engine, lease):
    sampling, samples, prompts = lease
    together = draw_all(engine, lease, count=24)
    for index, sample in enumerate(samples(24)):
        (alone,) = [
            one for step in engine.generate(sampling(), prompts, [sample], threading.Event()) for one in step.finished
        ]
        assert (alone.tokens, alone.logprobs) == (together[index].tokens, together[index].logprobs)
    engine.max_batch = 5
    assert draw_all(engine, lease, count=24) == together


def test_samples_end_at_a_stop_token_or_their_length_and_have_log_probabilities_a_host_admits(engine, lease):
    every_other = tuple(range(0, 264, 24))
    finished = draw_all(engine, lease, count=60, stop=every_other, max_tokens=12).values()
    assert {one.finish for one in finished} == {"stop", "length"}
    for one in finished:
        stops = [token in every_other for token in one.tokens]
        assert not any(stops[:-1])
        assert stops[-1] == (one.finish == "stop")
        assert len(one.logprobs) == len(one.tokens) <= 12
        assert all(math.isfinite(logprob) and logprob <= 0 for logprob in one.logprobs)


def test_generation_ends_between_two_tokens_when_told(engine, lease):
    sampling, samples, prompts = lease
    stop, steps = threading.Event(), 0
    for _ in engine.generate(sampling(max_tokens=50, stop=()), prompts, samples(6), stop):
        steps += 1
        stop.set()
    assert steps == 1


def test_a_pause_of_the_simulated_device_ends_when_generation_is_stopped(engine, run, lease):
    sampling, samples, prompts = lease
    crawling = SimulatedEngine(0.01)
    crawling.load(*run.snapshot())
    stop = threading.Event()
    drawn = []
    thread = threading.Thread(
        target=lambda: drawn.extend(crawling.generate(sampling(), prompts, samples(3), stop)), daemon=True
    )
    thread.start()
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
    assert drawn == []


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


def test_a_rate_is_named_by_a_device_or_a_number():
    assert rate_of("simulated") == DEVICES["a100"]
    assert rate_of("simulated:h100") == 5_000
    assert rate_of("simulated:123.5") == 123.5
    for wrong in ("simulated:tpu", "simulated:0", "simulated:-1", "simulated:1e400", "hf:1"):
        with pytest.raises(UsageError, match="no engine called"):
            rate_of(wrong)


@pytest.mark.slow
def test_its_process_loads_neither_torch_nor_transformers():
    script = "import sys, aurora_p2p.engine.worker; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
