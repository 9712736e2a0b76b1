"""Requests and served protocols between control hosts on 127.0.0.1."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import PortInUseError, UnreachableError, UsageError, WireError
from aurora_p2p.net.host import MAX_STREAMS_PER_PEER, ControlHost, open_control_host
from aurora_p2p.net.stack import LET_GO_SECONDS, STREAM_FAULTS, Stream
from aurora_p2p.types import PeerId, Record
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.control import Challenge, Noted, Reason, Refusal, Release, Reply, Request
from aurora_p2p.wire.frame import encode_frame

PROTOCOL, OTHER = "/aurora-test/1", "/aurora-test-other/1"
LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
QUESTION = Challenge(bytes(32))
LONG = 30.0
"""A deadline that a healthy test never meets, in seconds."""


@asynccontextmanager
async def pair(faults: list[str]) -> AsyncIterator[tuple[ControlHost, ControlHost, PeerId]]:
    """A server that notes faults, a client connected to it, and the server's peer id."""
    note: Callable[[PeerId, str], None] = lambda _peer, reason: faults.append(reason)  # noqa: E731
    async with (
        open_control_host(Identity.generate(), LOOPBACK, gossip=False, on_fault=note) as server,
        open_control_host(Identity.generate(), LOOPBACK, gossip=False) as client,
    ):
        yield server, client, await client.connect(server.addresses()[0], seconds=LONG)


def run(scenario: Callable[[ControlHost, ControlHost, PeerId], Awaitable[None]]) -> list[str]:
    """Run a scenario on a pair of hosts; returns the faults that the server noted."""
    faults: list[str] = []

    async def main() -> None:
        with trio.fail_after(LONG):
            async with pair(faults) as (server, client, peer):
                await scenario(server, client, peer)

    trio.run(main)
    return faults


async def noted(_peer: PeerId, _request: Request) -> Record:
    return Noted()


def test_a_peer_is_where_its_connection_comes_from() -> None:
    async def scenario(server: ControlHost, client: ControlHost, peer: PeerId) -> None:
        while not server.is_connected(client.peer):
            await trio.sleep(0.01)
        assert server.ip_of(client.peer) == client.ip_of(peer) == "127.0.0.1"
        await client.disconnect(peer)
        while client.is_connected(peer):
            await trio.sleep(0.01)
        assert client.ip_of(peer) == ""

    assert run(scenario) == []


def test_requests_to_one_peer_share_one_stream_and_the_handler_knows_who_asks() -> None:
    askers = []

    async def handler(peer: PeerId, request: Request) -> Record:
        askers.append(peer)
        return Refusal(Reason.NO_WORK) if isinstance(request, Challenge) else Noted()

    async def scenario(server: ControlHost, client: ControlHost, peer: PeerId) -> None:
        assert peer == server.peer
        server.serve(PROTOCOL, Request, handler)
        for _ in range(3):
            reply = await client.request(peer, PROTOCOL, QUESTION, Reply, seconds=LONG)
            assert reply == Refusal(Reason.NO_WORK)
        assert await client.request(peer, PROTOCOL, Release(bytes(16), 0), Reply, seconds=LONG) == Noted()
        assert server._served == {(client.peer, PROTOCOL): 1}

    run(scenario)
    assert len(askers) == 4
    assert len(set(askers)) == 1


def test_a_stream_that_the_other_side_closed_is_reopened_unasked() -> None:
    streams = []

    async def answer_once(peer: PeerId, stream: Stream) -> None:
        streams.append(peer)
        await stream.read(1 << 16)
        await stream.write(encode_frame(encode(Noted())))

    async def scenario(server: ControlHost, client: ControlHost, peer: PeerId) -> None:
        server.serve_stream(PROTOCOL, answer_once)
        for _ in range(2):
            assert await client.request(peer, PROTOCOL, QUESTION, Noted, seconds=LONG) == Noted()
            while client._lines[peer, PROTOCOL].is_fresh():  # until the close has arrived
                await trio.lowlevel.checkpoint()

    run(scenario)
    assert len(streams) == 2


def test_an_answer_of_the_wrong_kind_is_a_wire_error() -> None:
    async def scenario(server: ControlHost, client: ControlHost, peer: PeerId) -> None:
        server.serve(PROTOCOL, Request, noted)
        with pytest.raises(WireError):
            await client.request(peer, PROTOCOL, QUESTION, Refusal, seconds=LONG)

    run(scenario)


def test_an_answer_over_the_limit_is_refused_before_it_is_kept() -> None:
    async def handler(_peer: PeerId, _request: Request) -> Record:
        return Refusal(Reason.NO_WORK, "x" * 500)

    async def scenario(server: ControlHost, client: ControlHost, peer: PeerId) -> None:
        server.serve(PROTOCOL, Request, handler)
        with pytest.raises(WireError, match="announces"):
            await client.request(peer, PROTOCOL, QUESTION, Refusal, seconds=LONG, limit=100)

    run(scenario)


def test_a_peer_that_does_not_answer_is_unreachable_at_the_deadline_and_others_are_not_held_up() -> None:
    async def silent(_peer: PeerId, _request: Request) -> Record:
        await trio.sleep_forever()
        raise AssertionError

    async def scenario(server: ControlHost, client: ControlHost, peer: PeerId) -> None:
        server.serve(PROTOCOL, Request, silent)
        server.serve(OTHER, Request, noted)
        await client.request(peer, OTHER, QUESTION, Noted, seconds=LONG)
        with pytest.raises(UnreachableError, match="no answer"):
            await client.request(peer, PROTOCOL, QUESTION, Noted, seconds=0.3)
        assert await client.request(peer, OTHER, QUESTION, Noted, seconds=LONG) == Noted()

    run(scenario)


def test_a_handler_that_fails_is_logged_with_its_traceback_and_costs_one_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def buggy(_peer: PeerId, _request: Request) -> Record:
        raise KeyError("our bug")

    async def scenario(server: ControlHost, client: ControlHost, peer: PeerId) -> None:
        server.serve(PROTOCOL, Request, buggy)
        server.serve(OTHER, Request, noted)
        with pytest.raises(UnreachableError):
            await client.request(peer, PROTOCOL, QUESTION, Noted, seconds=LONG)
        assert await client.request(peer, OTHER, QUESTION, Noted, seconds=LONG) == Noted()

    with caplog.at_level(logging.ERROR):
        assert run(scenario) == []
    assert "our bug" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 64,
        encode_frame(b"\xc1"),
        encode_frame(encode(QUESTION), b"payload"),
        encode_frame(encode(QUESTION)) * 2,
        encode_frame(encode(QUESTION))[:-1],
    ],
    ids=["lengths", "body", "payload", "two-frames", "cut"],
)
def test_garbage_resets_its_own_stream_and_names_the_peer(garbage: bytes) -> None:
    async def scenario(server: ControlHost, client: ControlHost, peer: PeerId) -> None:
        server.serve(PROTOCOL, Request, noted)
        await client.request(peer, PROTOCOL, QUESTION, Noted, seconds=LONG)

        async def spoil(stream: Stream) -> None:
            await stream.write(garbage)
            await stream.close_write()
            while not await is_ended(stream):
                pass

        await client.call_stream(peer, PROTOCOL, spoil)
        assert await client.request(peer, PROTOCOL, QUESTION, Noted, seconds=LONG) == Noted()

    assert len(run(scenario)) == 1


async def is_ended(stream: Stream) -> bool:
    try:
        return not await stream.read(1 << 16)
    except STREAM_FAULTS:
        return True


def test_one_peer_gets_only_so_many_streams() -> None:
    async def hold(_peer: PeerId, _stream: Stream) -> None:
        await trio.sleep_forever()

    async def scenario(server: ControlHost, client: ControlHost, peer: PeerId) -> None:
        server.serve_stream(PROTOCOL, hold)

        async def keep(_stream: Stream) -> None:
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            for _ in range(MAX_STREAMS_PER_PEER):
                nursery.start_soon(client.call_stream, peer, PROTOCOL, keep)
            while server._served[client.peer, PROTOCOL] < MAX_STREAMS_PER_PEER:
                await trio.lowlevel.checkpoint()
            with pytest.raises(UnreachableError):
                await client.request(peer, PROTOCOL, QUESTION, Noted, seconds=LONG)
            nursery.cancel_scope.cancel()

    assert run(scenario) == [f"more than {MAX_STREAMS_PER_PEER} streams on {PROTOCOL}"]


def test_a_request_never_dials() -> None:
    async def scenario(server: ControlHost, client: ControlHost, _peer: PeerId) -> None:
        with pytest.raises(UnreachableError, match="not connected"):
            await server.request(Identity.generate().peer, PROTOCOL, QUESTION, Noted, seconds=LONG)

    run(scenario)


def test_dialling_says_why_it_failed() -> None:
    async def scenario(server: ControlHost, client: ControlHost, peer: PeerId) -> None:
        address = server.addresses()[0]
        await client.disconnect(peer)
        while client.is_connected(peer):
            await trio.lowlevel.checkpoint()
        stranger = address.replace(peer, Identity.generate().peer)
        with pytest.raises(UnreachableError, match="does not correspond"):
            await client.connect(stranger, seconds=LONG)
        with trio.socket.socket() as closed:
            await closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
            with pytest.raises(UnreachableError, match="efused"):
                await client.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}", seconds=LONG)
            closed.listen(1)
            with pytest.raises(UnreachableError, match="no answer"):
                await client.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}", seconds=0.3)
        for wrong in ("", "127.0.0.1:4101", f"/dns4/example.org/tcp/1/p2p/{peer}", "/ip4/1.2.3.4/tcp/1/p2p/x"):
            with pytest.raises(WireError):
                await client.connect(wrong, seconds=LONG)
        assert await client.connect(address, seconds=LONG) == peer  # earlier failures are not held against it

    run(scenario)


def test_a_port_in_use_is_named_and_a_wrong_address_as_well() -> None:
    async def main() -> None:
        async with open_control_host(Identity.generate(), LOOPBACK, gossip=False) as first:
            taken = first.addresses()[0].split("/p2p/")[0]
            with pytest.raises(PortInUseError, match=taken.split("/")[-1]):
                async with open_control_host(Identity.generate(), [taken], gossip=False):
                    pass
        for wrong in ("127.0.0.1:1", "/ip4/127.0.0.1/udp/1", "/ip4/127.0.0.1/tcp/70000"):
            with pytest.raises(UsageError):
                async with open_control_host(Identity.generate(), [wrong], gossip=False):
                    pass

    trio.run(main)


def test_a_wildcard_is_announced_as_addresses_that_can_be_dialled() -> None:
    async def main() -> None:
        async with open_control_host(Identity.generate(), ["/ip4/0.0.0.0/tcp/0"], gossip=False) as host:
            assert host.addresses()
            for address in host.addresses():
                assert "/0.0.0.0/" not in address
                assert "/tcp/0/" not in address
                assert address.endswith(f"/p2p/{host.peer}")

    trio.run(main)


def test_an_error_in_the_block_comes_out_as_it_is_and_no_task_stays_behind() -> None:
    async def fail_inside() -> None:
        async with pair([]) as (server, client, peer):
            server.serve(PROTOCOL, Request, noted)
            await client.request(peer, PROTOCOL, QUESTION, Noted, seconds=LONG)
            raise LookupError("mine")

    async def main() -> None:
        before = trio.lowlevel.current_statistics().tasks_living
        with pytest.raises(LookupError, match="mine"):
            await fail_inside()
        while trio.lowlevel.current_statistics().tasks_living > before:  # the test's time limit is the failure
            await trio.lowlevel.checkpoint()

    trio.run(main)


def test_a_peer_that_has_left_is_forgotten_with_its_addresses_and_its_tasks() -> None:
    async def main() -> None:
        async with open_control_host(Identity.generate(), LOOPBACK, gossip=False) as server:
            server.serve(PROTOCOL, Request, noted)
            await visit(server)
            tasks = await settled(server)
            for _ in range(3):
                await visit(server)
            assert await settled(server) == tasks
            assert server._libp2p.get_peerstore().peer_ids() == [server._libp2p.get_id()]

    async def visit(server: ControlHost) -> None:
        async with open_control_host(Identity.generate(), LOOPBACK, gossip=False) as visitor:
            peer = await visitor.connect(server.addresses()[0], seconds=LONG)
            assert await visitor.request(peer, PROTOCOL, QUESTION, Noted, seconds=LONG) == Noted()
            assert visitor.connections == server.connections == 1

    async def settled(server: ControlHost) -> int:
        """Living tasks once nobody is connected and what was begun has ended."""
        with trio.fail_after(LONG):
            fewest = trio.lowlevel.current_statistics().tasks_living
            quiet_until = trio.current_time() + 2 * LET_GO_SECONDS
            while server.connections or trio.current_time() < quiet_until:
                await trio.sleep(0.05)
                tasks = trio.lowlevel.current_statistics().tasks_living
                if tasks < fewest:
                    fewest, quiet_until = tasks, trio.current_time() + 2 * LET_GO_SECONDS
            return fewest

    trio.run(main)
