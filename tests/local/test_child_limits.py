"""How a child shares the machine: its priorities and the end of its memory."""

from __future__ import annotations

import resource
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import psutil
import pytest
import trio

from aurora_p2p.local.child import LOWEST_BEST_EFFORT, Child, IoPriority, Limits, open_child
from aurora_p2p.wire.trainer import Body, Failed

pytestmark = pytest.mark.slow

ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[2])}
Message = Body | Failed


def echo(limits: Limits) -> AbstractAsyncContextManager[Child[Message]]:
    return open_child("tests.local.echo_child", Message, limits=limits, env=ENVIRONMENT, inherit={"PATH"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        ("normal", (psutil.IOPRIO_CLASS_NONE, 0)),
        ("low", (psutil.IOPRIO_CLASS_BE, LOWEST_BEST_EFFORT)),
        ("idle", (psutil.IOPRIO_CLASS_IDLE, 0)),
    ],
)
def test_a_child_has_its_priorities_before_it_says_anything(priority: IoPriority, expected: tuple[int, int]) -> None:
    async def main() -> None:
        async with echo(Limits(4, priority)) as child:
            said, _ = await child.channel.receive()
            process = psutil.Process(child.pid)
            found = process.ionice()
            assert isinstance(said, Failed)
            assert said.hint.startswith("nice 4 ")
            assert (found.ioclass, found.value if priority == "low" else 0) == expected

    trio.run(main)


def test_the_memory_limit_of_a_child_is_its_own() -> None:
    async def main() -> None:
        async with echo(Limits(memory_bytes=1 << 30)) as child:
            await child.channel.receive()
            assert psutil.Process(child.pid).rlimit(psutil.RLIMIT_DATA) == (1 << 30, 1 << 30)

    before = resource.getrlimit(resource.RLIMIT_DATA)
    trio.run(main)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
