"""The engine as its daemon meets it: a real child process behind a socket pair."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path

import pytest
import trio
import trio.testing

from aurora_p2p.engine.client import open_engine
from aurora_p2p.errors import CheckpointError, ChildError, DigestMismatch, UsageError, WireError

pytestmark = pytest.mark.slow  # each test starts a child that imports torch

DEADLINE_SECONDS = 120


def with_engine(tmp_path, scenario, **options):
    async def main():
        with trio.fail_after(DEADLINE_SECONDS):
            async with open_engine(log=tmp_path / "engine.log", **options) as engine:
                await scenario(engine)

    trio.run(main)


async def collect(engine, lease, count=12, **options):
    sampling, samples, prompts = lease
    finished = {}
    async with aclosing(engine.generate(sampling(**options), prompts, samples(count))) as batches:
        async for batch in batches:
            finished.update((one.index, (batch.version, one)) for one in batch.samples)
            assert batch.first_token_at <= batch.last_token_at
    assert batch.done
    assert batch.tokens_per_second > 0
    return finished


def test_the_whole_life_of_an_engine(tmp_path, run, lease):
    async def scenario(engine):
        with pytest.raises(CheckpointError, match="no model is loaded"):
            await engine.audit()
        loaded = await engine.load(*run.snapshot())
        assert (loaded.version, loaded.digest, loaded.audited) == (0, run.digest, True)
        assert {version for version, _ in (await collect(engine, lease)).values()} == {0}
        delta = run.delta()
        staged = await engine.stage(*delta)
        committed = await engine.commit(delta.header.version, audit=True)
        assert committed.digest == run.digest
        assert committed.changed == staged.changed
        assert {version for version, _ in (await collect(engine, lease)).values()} == {1}
        with pytest.raises(WireError, match="positions"):
            await collect(engine, lease, max_tokens=126)
        with pytest.raises(CheckpointError, match="not staged"):
            await engine.commit(5)
        with pytest.raises(DigestMismatch, match="base"):
            await engine.stage(*delta)
        assert (await engine.audit()).digest == run.digest

    with_engine(tmp_path, scenario)


def test_staging_goes_on_beside_a_generation_and_the_commit_waits_for_it(tmp_path, run, lease):
    async def scenario(engine):
        await engine.load(*run.snapshot())
        delta = run.delta()
        order = []

        async def generate():
            versions = await collect(engine, lease, count=60, max_tokens=100, stop=())
            order.append({version for version, _ in versions.values()})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate)
            await trio.testing.wait_all_tasks_blocked()
            await engine.stage(*delta)
            order.append("staged")
            assert (await engine.commit(delta.header.version)).version == 1
            order.append("committed")
        assert order[0] == "staged"  # while the generation went on
        # All of it was drawn before the commit, whose answer may overtake the last samples on their way to this task.
        assert sorted(map(str, order[1:])) == ["committed", "{0}"]

    with_engine(tmp_path, scenario)


def test_leaving_a_generation_stops_it_in_the_child(tmp_path, run, lease):
    sampling, samples, prompts = lease

    async def scenario(engine):
        await engine.load(*run.snapshot())
        stops = tuple(range(0, 256, 16))
        async with aclosing(engine.generate(sampling(max_tokens=120, stop=stops), prompts, samples(900))) as batches:
            async for batch in batches:
                assert not batch.done
                break
        assert len(await collect(engine, lease)) == 12
        assert (await engine.audit()).digest == run.digest

    with_engine(tmp_path, scenario, max_batch=4)


def test_a_killed_child_fails_open_and_later_calls_at_once(tmp_path, run, lease):
    async def scenario(engine):
        await engine.load(*run.snapshot())
        failures = []

        async def generate():
            with pytest.raises(ChildError, match="signal 9"):
                await collect(engine, lease, count=900, max_tokens=120, stop=())
            failures.append("generate")

        async def commit():
            with pytest.raises(ChildError, match="signal 9"):
                await engine.commit(1)
            failures.append("commit")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(commit)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(engine.pid, signal.SIGKILL)
        assert sorted(failures) == ["commit", "generate"]
        with pytest.raises(ChildError, match=str(engine.pid)):
            await engine.audit()

    with_engine(tmp_path, scenario, max_batch=1)


def test_an_unknown_engine_or_device_is_a_usage_error(tmp_path):
    async def scenario(engine):
        pytest.fail("it started")

    with pytest.raises(UsageError, match="no engine called 'magic'"):
        with_engine(tmp_path, scenario, engine="magic")
    with pytest.raises(UsageError, match="no device 'tpu'"):
        with_engine(tmp_path, scenario, device="tpu")


KILLED_DAEMON = """
import os, pathlib, signal, trio
from aurora_p2p.engine.client import open_engine

async def main():
    async with open_engine(engine="simulated", log=None) as engine:
        environment = pathlib.Path(f"/proc/{engine.pid}/environ").read_text().split(chr(0))
        print(engine.pid, next(line for line in environment if line.startswith("HOME="))[5:], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

trio.run(main)
"""


def test_a_killed_daemon_leaves_neither_its_engine_nor_the_engines_home_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    daemon = subprocess.run([sys.executable, "-c", KILLED_DAEMON], capture_output=True, text=True, check=False)
    assert daemon.returncode == -signal.SIGKILL, daemon.stderr
    pid, home = daemon.stdout.split()
    assert Path(home).parent == tmp_path
    deadline = time.monotonic() + DEADLINE_SECONDS
    while Path(home).exists() or Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"{home} or process {pid} is still there"
        time.sleep(0.05)


def test_the_child_sees_none_of_the_owners_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")

    async def scenario(engine):
        environment = (await trio.Path(f"/proc/{engine.pid}/environ").read_bytes()).decode()
        assert "HF_TOKEN" not in environment
        assert "HF_HUB_OFFLINE=1" in environment
        home = next(line for line in environment.split("\0") if line.startswith("HOME="))
        assert "aurora-engine-" in home
        limits = await trio.Path(f"/proc/{engine.pid}/limits").read_text()
        assert next(line for line in limits.splitlines() if "core file" in line).split()[4:6] == ["0", "0"]
        descriptors = await trio.to_thread.run_sync(lambda: os.listdir(f"/proc/{engine.pid}/fd"))
        assert len(descriptors) < 12

    with_engine(tmp_path, scenario)
