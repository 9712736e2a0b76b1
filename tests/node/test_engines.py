"""Which engines there are, how they share the machine, and one that takes more memory than it may."""

import itertools
import os

import pytest
import trio
import trio.testing

from aurora_node import engines as module
from aurora_node.config import NodeConfig
from aurora_node.engines import HARD_MARGIN_BYTES, WATCH_SECONDS, Engines, bulk_limits, engine_limits
from aurora_node.presence import GIB
from aurora_p2p.engine.names import check_engine
from aurora_p2p.errors import ChildError, UsageError
from aurora_p2p.local.child import Limits
from aurora_p2p.local.output import Output


@pytest.mark.parametrize("name", ["hf", "simulated", "simulated:h100", "simulated:400"])
def test_an_engine_that_there_is_may_be_named(name):
    check_engine(name)


@pytest.mark.parametrize("name", ["vllm", "", "hf:fast", "simulated:quick"])
def test_one_that_there_is_not_is_refused_with_those_that_there_are(name):
    with pytest.raises(UsageError, match="there is no engine called") as refused:
        check_engine(name)
    assert refused.value.hint


def test_the_engine_is_as_nice_as_its_owner_says_and_the_data_plane_less_so():
    config = NodeConfig(nice=7, io_priority="idle", device="cpu")
    assert engine_limits(config) == Limits(7, "idle", 0)
    assert bulk_limits(config) == Limits(2, "idle", 0)
    assert bulk_limits(NodeConfig(nice=0)).nice == 0


def test_a_cap_on_memory_is_also_a_hard_limit_of_an_engine_on_the_cpu_alone():
    """A GPU's driver reserves address space without end."""
    assert engine_limits(NodeConfig(max_ram_gib=4.0, device="cpu")).memory_bytes == 6 * GIB + HARD_MARGIN_BYTES
    assert engine_limits(NodeConfig(max_ram_gib=4.0, device="cuda")).memory_bytes == 0


class Running:
    """An engine whose process is this one: its size is real."""

    pid = os.getpid()


def watch(tmp_path, config, seconds):
    async def main():
        engines = Engines(config, tmp_path, None, None, None, Output(as_json=False))
        with trio.move_on_after(seconds):
            await engines._watch_memory(Running())

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_an_engine_above_its_cap_is_ended_with_figures(tmp_path):
    with pytest.raises(ChildError, match=r"took \d+\.\d\d GiB of memory, more than 0\.01 \(max_ram_gib\)"):
        watch(tmp_path, NodeConfig(max_ram_gib=0.01), 2 * WATCH_SECONDS)


@pytest.mark.parametrize("cap", [0.0, 1024.0])
def test_one_below_it_or_without_one_is_left_alone(cap, tmp_path):
    watch(tmp_path, NodeConfig(max_ram_gib=cap), 100 * WATCH_SECONDS)


def test_an_engine_that_keeps_being_ended_is_started_less_and_less_often(tmp_path, monkeypatch, capsys):
    starts = []

    class Worker:
        drained = False

    class Weights:
        held, problem = None, ""

    async def main():
        engines = Engines(NodeConfig(), tmp_path, Weights, Worker, None, Output(as_json=False))

        async def too_large():
            starts.append(trio.current_time())
            raise ExceptionGroup("", [ChildError("the engine took 9 GiB")])

        engines._one_engine = too_large
        with trio.move_on_after(600):
            await engines.run()
        assert engines.restarts == len(starts)
        assert "took 9 GiB" in Weights.problem

    monkeypatch.setattr(module, "boottime", trio.current_time)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    gaps = [round(after - before) for before, after in itertools.pairwise(starts)]
    assert gaps[:6] == [2, 4, 8, 16, 32, 60]
    assert set(gaps[6:]) == {60}
