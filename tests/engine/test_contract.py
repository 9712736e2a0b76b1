"""What every engine that holds weights promises; each test runs on all of them."""

from __future__ import annotations

import importlib

import pytest

from tests.engine.drawing import draw_all

ENGINES = [
    pytest.param(("aurora_p2p.engine.simulated", "SimulatedEngine", {"tokens_per_second": 1e6}), id="simulated"),
    pytest.param(("aurora_p2p.engine.hf", "HfEngine", {}), id="hf", marks=pytest.mark.slow),  # imports transformers
    pytest.param(("aurora_p2p.engine.hf", "HfEngine", {"resident": True}), id="hf-resident", marks=pytest.mark.slow),
]


@pytest.fixture(params=ENGINES)
def make_engine(request):
    module, name, arguments = request.param
    kind = getattr(importlib.import_module(module), name)
    return lambda: kind(**arguments)


@pytest.fixture
def engine(make_engine, run):
    engine = make_engine()
    engine.load(*run.snapshot())
    return engine


def test_after_staged_deltas_the_served_digest_is_the_publishers(engine, run):
    for _ in range(4):
        artifact = run.delta()
        staged = engine.stage(*artifact)
        committed = engine.commit(artifact.header.version, audit=True)
        assert (staged.digest, committed.digest) == (run.digest, run.digest)
        assert committed.audited
        assert committed.changed == staged.changed > 0
    assert engine.audit().digest == run.digest


def test_versions_may_be_staged_ahead_and_committed_at_once(engine, run):
    first, second, third = run.delta(), run.delta(), run.delta()
    engine.stage(*first)
    engine.stage(*second)
    engine.commit(first.header.version, audit=True)
    engine.stage(*third)
    outcome = engine.commit(third.header.version, audit=True)
    assert outcome.digest == run.digest == engine.audit().digest


def test_a_staged_snapshot_is_committed_whole(engine, run):
    run.delta()
    snapshot = run.snapshot()
    engine.stage(*snapshot)
    outcome = engine.commit(snapshot.header.version, audit=True)
    assert outcome.digest == run.digest == engine.audit().digest
    delta = run.delta()
    engine.stage(*delta)
    assert engine.commit(delta.header.version, audit=True).digest == run.digest


def test_samples_after_commits_equal_those_of_a_fresh_engine(engine, make_engine, run, lease):
    before = draw_all(engine, lease)
    for _ in range(3):
        artifact = run.delta(share=0.3)
        engine.stage(*artifact)
        engine.commit(artifact.header.version, audit=False)
    fresh = make_engine()
    fresh.load(*run.snapshot())
    assert draw_all(engine, lease) == draw_all(fresh, lease)
    assert draw_all(engine, lease) != before
    assert draw_all(engine, lease, temperature=1e-3) == draw_all(fresh, lease, temperature=1e-3)
