"""A node whose owner lets it fetch nothing, for want of disk: it serves, and goes on where it stopped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from tests.net.test_exchange_driver import SEGMENT, publish, swarm, until

pytestmark = pytest.mark.slow


def test_a_node_that_may_not_fetch_still_serves_and_completes_when_it_may(tmp_path: Path) -> None:
    first_body, second_body = os.urandom(16 * SEGMENT), os.urandom(16 * SEGMENT)

    async def main() -> None:
        async with swarm(tmp_path, 3) as three:
            holding, free = three.nodes
            await until(lambda: all(len(one.driver.linked) == 2 for one in three.parties))
            await publish(three.host, first_body)
            await three.everyone_done()
            holding.driver.hold_fetching(True)
            second = await publish(three.host, second_body, seq=2)
            with trio.fail_after(60):
                assert await three.done.receive() == second.artifact  # the other node's
            assert free.store.is_complete(second.artifact)
            assert not holding.store.is_complete(second.artifact)
            assert holding.driver.status()["disk_paused"]
            holding.driver.hold_fetching(False)
            with trio.fail_after(60):
                await three.done.receive()
            assert holding.store.body_path(second.artifact).read_bytes() == second_body
            assert not holding.driver.status()["disk_paused"]

    trio.run(main)


def test_a_disk_that_recovers_does_not_end_the_owners_hold(tmp_path: Path) -> None:
    body = os.urandom(16 * SEGMENT)

    async def main() -> None:
        async with swarm(tmp_path, 2) as two:
            [node] = two.nodes
            node.driver.hold_fetching(True)
            node.driver._pause()  # as when the disk has refused a segment
            await until(lambda: node.driver._resume_at == float("inf"))
            assert node.driver.status()["disk_paused"]
            await publish(two.host, body)
            await until(lambda: bool(node.notices))
            assert node.driver.status()["artifacts"][0]["have"] == 0
            node.driver.hold_fetching(False)
            await two.everyone_done()

    trio.run(main)
