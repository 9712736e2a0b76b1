"""What gossip keeps: a few heartbeats of messages, and nothing of them afterwards."""

from __future__ import annotations

import pytest
import trio
from libp2p.peer.id import ID

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.net.gossip import VERDICTS
from aurora_p2p.net.host import open_control_host

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
TOPIC = "heads"
LONG = 30.0
"""Five heartbeats of a second, on a loaded machine; the library's own pace would take 150 s."""
pytestmark = pytest.mark.slow


def test_messages_are_kept_for_a_few_heartbeats_and_then_forgotten() -> None:
    async def main() -> None:
        with trio.fail_after(2 * LONG):
            async with (
                open_control_host(Identity.generate(), LOOPBACK) as listener,
                open_control_host(Identity.generate(), LOOPBACK) as speaker,
                listener.subscribe(TOPIC) as messages,
                speaker.subscribe(TOPIC),
            ):
                await speaker.connect(listener.addresses()[0], seconds=LONG)
                pubsub = speaker._gossip._pubsub  # type: ignore[union-attr]
                await pubsub.wait_for_mesh(ID.from_base58(listener.peer), TOPIC, timeout=LONG)
                for number in range(5):
                    await speaker.publish(TOPIC, b"%d" % number)
                for number in range(5):
                    assert (await anext(messages))[1] == b"%d" % number
                kept = listener._gossip._pubsub  # type: ignore[union-attr]
                with trio.fail_after(LONG):
                    while kept.router.mcache.msgs:
                        await trio.sleep(0.1)
                assert not kept.router.equivocation_detection
                assert kept.router.heartbeat_interval == 1
                assert len(kept.router.recent_message_deliveries[TOPIC]) == 1
                assert kept.validation_cache.max_size == VERDICTS

    trio.run(main)
