"""Gossip of small hints (a new HEAD, "I have this") over GossipSub 1.1/1.2, strictly signed by their publisher.

What arrives is a hint: signed by whom it says, possibly old, possibly missing. Payloads are at most MAX_GOSSIP bytes
(libp2p drops large messages in silence). The heartbeat is 1 s; the library's default of 120 s would leave a new peer
without messages for minutes, and its "adaptive" mode, which goes over to 30 or 60 s in a small swarm, is off as well:
besides, messages are kept for five heartbeats.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, PROTOCOL_ID_V12, GossipSub
from libp2p.pubsub.pubsub import Pubsub
from libp2p.tools.anyio_service import background_trio_service

from aurora_p2p.crypto.identity import public_key_of
from aurora_p2p.errors import WireError
from aurora_p2p.types import PeerId

MAX_GOSSIP = 16 * 1024
"""Bytes of one payload."""
VERDICTS = 128
"""Messages whose validity is remembered: a message comes from a few neighbours within a second or two."""
MAX_TOPICS_PER_PEER = 16
"""Topics one peer may subscribe to here; a swarm has two or three."""

Messages = AsyncIterator[tuple[PeerId, bytes]]
Valid = Callable[[PeerId, bytes], bool]


def accept_all(signer: PeerId, payload: bytes) -> bool:
    return True


class _Pubsub(Pubsub):  # type: ignore[misc]  # libp2p is untyped to us
    """Pubsub that a message with a nonsense signer does not end: the library raises in a task of its own on those."""

    async def push_msg(self, msg_forwarder: Any, msg: Any) -> None:
        if _is_peer(str(ID(msg.from_id))):
            await super().push_msg(msg_forwarder, msg)


class _Router(GossipSub):  # type: ignore[misc]
    """GossipSub that keeps no message, and no time of one, for good."""

    def __init__(self) -> None:
        super().__init__(
            protocols=[PROTOCOL_ID_V12, PROTOCOL_ID_V11],
            degree=6,
            degree_low=4,
            degree_high=9,
            heartbeat_interval=1,
            adaptive_gossip_enabled=False,
        )
        # A list of times that only the adaptive mode ever shortens.
        self.recent_message_deliveries: Any = defaultdict(lambda: deque(maxlen=1))

    def _check_equivocation(self, msg: Any) -> bool:
        """The library keeps 1,000 messages, with the packets they came in, to catch a signer that sends two under one
        number. What is gossiped here is signed and numbered itself, and judged by that (swarm/freshness.py)."""
        return True


class Gossip:
    """One running GossipSub router."""

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub

    async def publish(self, topic: str, payload: bytes) -> None:
        """Sign and send. Raises ValueError when the payload is too long."""
        if len(payload) > MAX_GOSSIP:
            raise ValueError(f"a gossip payload of {len(payload)} bytes exceeds {MAX_GOSSIP}")
        await self._pubsub.publish(topic, payload)

    @asynccontextmanager
    async def subscribe(self, topic: str, valid: Valid = accept_all) -> AsyncIterator[Messages]:
        """Receive (signer, payload) of a topic while the block lasts; one subscription per topic."""

        def passes(_: object, message: Any) -> bool:
            signer = str(ID(message.from_id))
            return len(message.data) <= MAX_GOSSIP and valid(PeerId(signer), bytes(message.data))

        self._pubsub.set_topic_validator(topic, passes, False)
        subscription = await self._pubsub.subscribe(topic)
        try:
            yield _Received(subscription)
        finally:
            self._pubsub.remove_topic_validator(topic)
            await subscription.unsubscribe()


class _Received:
    """Iterates a subscription; a plain iterator, since an async generator left half-way must be closed by hand."""

    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription

    def __aiter__(self) -> _Received:
        return self

    async def __anext__(self) -> tuple[PeerId, bytes]:
        try:
            message = await self._subscription.get()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        return PeerId(str(ID(message.from_id))), bytes(message.data)


def _is_peer(text: str) -> bool:
    try:
        public_key_of(text)
    except WireError:
        return False
    return True


@asynccontextmanager
async def open_gossip(libp2p: Any) -> AsyncIterator[Gossip]:
    """Run GossipSub on a running libp2p host until the block is left."""
    router = _Router()
    pubsub = _Pubsub(
        libp2p,
        router,
        strict_signing=True,
        max_subscriptions_per_peer=MAX_TOPICS_PER_PEER,
        validation_cache_size=VERDICTS,
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(background_trio_service(pubsub))
        await stack.enter_async_context(background_trio_service(router))
        await pubsub.wait_until_ready()
        yield Gossip(pubsub)
