"""Faults in real children: the engine in the middle of a commit, and the bulk child in the middle of a segment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from aurora_p2p.engine.client import open_engine
from aurora_p2p.errors import ChildError
from aurora_p2p.testing.faults import kill, marks_in, plan
from tests.engine.conftest import Run, samples, sampling

pytestmark = pytest.mark.slow

SIMULATED = "simulated:100000"
DEADLINE_SECONDS = 60
ROOT = Path(__file__).parents[2]
PROMPTS = ((5, 6, 7), (8, 9, 10), (11, 12, 13, 14, 15))


def with_engine(tmp_path, scenario):
    async def main():
        with trio.fail_after(DEADLINE_SECONDS):
            async with open_engine(engine=SIMULATED, log=tmp_path / "engine.log") as engine:
                await scenario(engine)

    trio.run(main)


async def generate(engine):
    finished = []
    async with aclosing(engine.generate(sampling(), PROMPTS, samples(12))) as batches:
        async for batch in batches:
            finished += [(batch.version, one.index) for one in batch.samples]
    return finished


def test_the_simulated_engine_lives_its_whole_life_in_a_child(tmp_path):
    run = Run(tmp_path)

    async def scenario(engine):
        loaded = await engine.load(*run.snapshot())
        assert (loaded.version, loaded.digest, loaded.audited) == (0, run.digest, True)
        delta = run.delta()
        await engine.stage(*delta)
        assert sorted(await generate(engine)) == [(0, index) for index in range(12)]
        assert (await engine.commit(delta.header.version, audit=True)).digest == run.digest
        assert sorted(await generate(engine)) == [(1, index) for index in range(12)]

    with_engine(tmp_path, scenario)


def test_an_engine_killed_in_the_middle_of_a_commit_is_followed_by_one_that_commits(tmp_path, monkeypatch):
    run, marks = Run(tmp_path), tmp_path / "marks"
    marks.mkdir()
    snapshot, delta = run.snapshot(), run.delta()
    rules = plan(kill("engine.committing", hit=5), process="engine")
    for name, value in rules.environment(marks).items():
        monkeypatch.setenv(name, value)

    async def dies(engine):
        await engine.load(*snapshot)
        await engine.stage(*delta)
        with pytest.raises(ChildError, match="signal 9"):
            await engine.commit(delta.header.version, audit=True)
        assert [mark.pid for mark in marks_in(marks)] == [engine.pid]

    async def lives(engine):
        await engine.load(*snapshot)
        await engine.stage(*delta)
        assert (await engine.commit(delta.header.version, audit=True)).digest == run.digest

    with_engine(tmp_path, dies)
    with_engine(tmp_path, lives)
    assert "fails on purpose" in (tmp_path / "engine.log").read_text()


def test_a_swarm_of_real_processes_mends_itself_and_the_crash_benchmark_says_so():
    words = [sys.executable, "-m", "benchmarks.crash", "--json", "--seed", "7", "--cases", "3", "--only", "killed at"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    wrong = {key: figures[key] for key in ("unreached", "wrong_digests", "lost", "doubled", "stale", "stuck")}
    assert wrong == dict.fromkeys(wrong, 0)
    assert figures["cases"] == 3
    assert figures["receipts_checked"] > 0
    assert figures["engine"] == "simulated"
