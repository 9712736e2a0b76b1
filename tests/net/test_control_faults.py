"""Peers that stop, lie to libp2p below our protocols, or send it garbage: the host and its other peers go on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest
import trio
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import UnreachableError
from aurora_p2p.net.gossip import MAX_GOSSIP
from aurora_p2p.net.host import ControlHost, open_control_host
from aurora_p2p.net.stack import Stream
from aurora_p2p.types import PeerId, Record
from aurora_p2p.wire.control import Challenge, Noted, Request

PROTOCOL, MESHSUB = "/aurora-test/1", "/meshsub/1.2.0"
LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
QUESTION = Challenge(bytes(32))
LONG = 30.0
TOPIC = "heads"

SERVER = """
import trio
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.net.host import open_control_host
from aurora_p2p.wire.control import Noted, Request

async def answer(peer, request):
    return Noted()

async def main():
    async with open_control_host(Identity.generate(), ["/ip4/127.0.0.1/tcp/0"], gossip=False) as host:
        host.serve("/aurora-test/1", Request, answer)
        print(host.addresses()[0], flush=True)
        await trio.sleep_forever()

trio.run(main)
"""

pytestmark = pytest.mark.slow


async def noted(_peer: PeerId, _request: Request) -> Record:
    return Noted()


async def still_answers(host: ControlHost) -> None:
    """A newcomer can connect to the host and is answered."""
    async with open_control_host(Identity.generate(), LOOPBACK, gossip=False) as newcomer:
        peer = await newcomer.connect(host.addresses()[0], seconds=LONG)
        assert await newcomer.request(peer, PROTOCOL, QUESTION, Noted, seconds=LONG) == Noted()


def test_a_stopped_process_is_unreachable_at_the_deadline_and_answers_again_once_it_continues() -> None:
    async def main(address: str, pid: int) -> None:
        async with open_control_host(Identity.generate(), LOOPBACK, gossip=False) as host:
            peer = await host.connect(address, seconds=LONG)
            assert await host.request(peer, PROTOCOL, QUESTION, Noted, seconds=LONG) == Noted()
            os.kill(pid, signal.SIGSTOP)
            for _ in range(3):  # on the kept stream, on a new stream, and without a connection
                with trio.fail_after(LONG), pytest.raises(UnreachableError):
                    await host.request(peer, PROTOCOL, QUESTION, Noted, seconds=0.5)
            with trio.fail_after(LONG):
                while host.is_connected(peer):
                    await trio.lowlevel.checkpoint()
                with pytest.raises(UnreachableError):
                    await host.connect(address, seconds=0.5)
            os.kill(pid, signal.SIGCONT)
            await host.connect(address, seconds=LONG)
            assert await host.request(peer, PROTOCOL, QUESTION, Noted, seconds=LONG) == Noted()

    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        trio.run(main, process.stdout.readline().strip(), process.pid)
    finally:
        process.kill()
        process.communicate()


def test_a_visitor_who_has_left_takes_no_place() -> None:
    """The library keeps a task, and one of its 300 places, for every connection that it ever accepted."""

    async def main() -> None:
        async with open_control_host(Identity.generate(), LOOPBACK, gossip=False) as host:
            host.serve(PROTOCOL, Request, noted)
            before = trio.lowlevel.current_statistics().tasks_living
            places = host._libp2p.get_network()._inbound_limiter
            await still_answers(host)
            while trio.lowlevel.current_statistics().tasks_living > before or places.borrowed_tokens:
                await trio.sleep(0.01)  # ends by the deadline if either is kept

    with_deadline(main)


def test_hostile_muxer_frames_end_at_most_their_own_connection() -> None:
    hostile = [
        b"\xff" * 64,
        bytes([0, 0, 0, 0, 0, 0, 0, 77, 255, 255, 255, 255]),  # data of 4 GiB
        bytes([0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0]) * 40,  # the same stream opened again and again
        bytes([0, 1, 0, 9, 0, 0, 0, 2, 0, 0, 0, 0]) * 40,  # opened and reset at once
        bytes([0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]),  # go away, for an unknown reason
    ]

    async def attack(host: ControlHost, frames: bytes) -> None:
        async with open_control_host(Identity.generate(), LOOPBACK, gossip=False) as attacker:
            peer = await attacker.connect(host.addresses()[0], seconds=LONG)
            (connection,) = attacker._libp2p.get_network().get_connections(ID.from_base58(peer))
            await connection.muxed_conn.secured_conn.write(frames)
            await until_read(attacker, peer)

    async def main() -> None:
        async with open_control_host(Identity.generate(), LOOPBACK, gossip=False) as host:
            host.serve(PROTOCOL, Request, noted)
            for frames in hostile:
                await attack(host, frames)
            await still_answers(host)

    with_deadline(main)


def test_garbage_on_the_protocols_of_libp2p_itself_does_not_end_the_host() -> None:
    async def main() -> None:
        async with (
            open_control_host(Identity.generate(), LOOPBACK) as host,
            open_control_host(Identity.generate(), LOOPBACK, gossip=False) as attacker,
        ):
            host.serve(PROTOCOL, Request, noted)
            peer = await attacker.connect(host.addresses()[0], seconds=LONG)
            for protocol in (MESHSUB, "/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0", "/ipfs/ping/1.0.0"):
                for garbage in (b"\x05\xff\xff\xff\xff\xff", b"\xff" * 32):
                    await write_garbage(attacker, peer, protocol, garbage)
            await still_answers(host)

    with_deadline(main)


def test_gossip_of_a_nonsense_signer_is_dropped_and_later_messages_arrive() -> None:
    """The library raises in a task of its own on a key that it cannot read, which would end gossip and the host."""
    me = Identity.generate()
    nonsense = [
        rpc_pb2.Message(data=b"x", topicIDs=[TOPIC], from_id=b"\x00\x01\x02", seqno=b"1", key=b"junk", signature=b"s"),
        rpc_pb2.Message(data=b"x", topicIDs=[TOPIC], from_id=b"", seqno=b"2", key=b"junk", signature=b"s"),
        rpc_pb2.Message(data=b"x", topicIDs=[TOPIC], from_id=ID.from_base58(me.peer).to_bytes(), signature=b"s" * 64),
    ]
    body = rpc_pb2.RPC(publish=nonsense).SerializeToString()

    async def main() -> None:
        async with (
            open_control_host(Identity.generate(), LOOPBACK) as host,
            open_control_host(me, LOOPBACK) as honest,
            open_control_host(Identity.generate(), LOOPBACK, gossip=False) as attacker,
            host.subscribe(TOPIC) as messages,
            honest.subscribe(TOPIC),
        ):
            host.serve(PROTOCOL, Request, noted)
            peer = await attacker.connect(host.addresses()[0], seconds=LONG)
            await write_garbage(attacker, peer, MESHSUB, varint(body))
            await meet(honest, host)
            await honest.publish(TOPIC, b"honest")
            assert await anext(messages) == (honest.peer, b"honest")

    with_deadline(main)


def test_gossip_is_delivered_with_its_signer_unless_the_subscriber_refuses_it() -> None:
    async def main() -> None:
        async with (
            open_control_host(Identity.generate(), LOOPBACK) as host,
            open_control_host(Identity.generate(), LOOPBACK) as other,
            host.subscribe(TOPIC, lambda _signer, payload: payload != b"bad") as messages,
            other.subscribe(TOPIC),
        ):
            await meet(other, host)
            for payload in (b"bad", b"good", bytes(MAX_GOSSIP)):
                await other.publish(TOPIC, payload)
            received = {await anext(messages), await anext(messages)}
            assert received == {(other.peer, b"good"), (other.peer, bytes(MAX_GOSSIP))}
            with pytest.raises(ValueError, match="exceeds"):
                await other.publish(TOPIC, bytes(MAX_GOSSIP + 1))

    with_deadline(main)


def with_deadline(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(LONG):
            await main()

    trio.run(bounded)


def varint(body: bytes) -> bytes:
    """A body behind its length as an unsigned varint."""
    length, prefix = len(body), bytearray()
    while length >= 128:
        prefix.append(length % 128 + 128)
        length //= 128
    return bytes([*prefix, length]) + body


async def write_garbage(attacker: ControlHost, peer: PeerId, protocol: str, garbage: bytes) -> None:
    async def talk(stream: Stream) -> None:
        await stream.write(garbage)
        await stream.close_write()
        await until_read(attacker, peer)

    await attacker.call_stream(peer, protocol, talk)


async def until_read(attacker: ControlHost, peer: PeerId) -> None:
    """Until the other side has read what went before on this connection, or no longer makes sense of it."""
    with contextlib.suppress(UnreachableError):
        await attacker.request(peer, PROTOCOL, QUESTION, Noted, seconds=1.0)


async def meet(publisher: ControlHost, subscriber: ControlHost) -> None:
    """Connect, and wait until the subscriber is in the publisher's mesh: a message goes to those that are in it, and
    that one is subscribed is known a moment earlier."""
    peer = await publisher.connect(subscriber.addresses()[0], seconds=LONG)
    assert publisher._gossip is not None
    await publisher._gossip._pubsub.wait_for_mesh(ID.from_base58(peer), TOPIC, timeout=LONG)
    await publisher._gossip._pubsub.wait_for_peer(ID.from_base58(peer), timeout=LONG)
