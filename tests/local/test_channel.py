"""Typed messages between processes of one machine, both ends over a real socket pair, and a real child."""

import socket
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.errors import UnreachableError, WireError
from aurora_p2p.local.channel import Channel, TrioChannel, connect_local
from aurora_p2p.local.child import Limits, inherited_channel, open_child
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.frame import encode_frame
from aurora_p2p.wire.trainer import AskStatus, Body, Failed, StatusJson

Message = Body | AskStatus | Failed | StatusJson


def pair():
    """(blocking end, trio end); make it inside trio."""
    left, right = socket.socketpair()
    left.settimeout(10)
    return Channel(left, Message), TrioChannel(trio.SocketStream(trio.socket.from_stdlib_socket(right)), Message)


@given(st.lists(st.tuples(st.text(max_size=500), st.binary(max_size=2000)), max_size=5))
def test_messages_and_payloads_arrive_whole_and_in_order_in_both_directions(said):
    async def main():
        blocking, ours = pair()
        for text, payload in said:
            blocking.send(Failed(text), payload)
            await ours.send(StatusJson(text), payload)
        for text, payload in said:
            assert await ours.receive() == (Failed(text), payload)
            assert blocking.receive() == (StatusJson(text), payload)
        blocking.close()
        await ours.aclose()

    trio.run(main)


def test_messages_sent_in_one_write_arrive_one_by_one():
    async def main():
        blocking, ours = pair()
        blocking.send_batch([Body(), AskStatus()])
        assert [await ours.receive() for _ in range(2)] == [(Body(), b""), (AskStatus(), b"")]
        await ours.send_batch([AskStatus(), Body()])
        assert [blocking.receive() for _ in range(2)] == [(AskStatus(), b""), (Body(), b"")]
        blocking.close()
        await ours.aclose()

    trio.run(main)


def test_a_closed_other_end_is_end_of_file_for_reader_and_writer_on_both_sides():
    async def main():
        blocking, ours = pair()
        await ours.aclose()
        with pytest.raises(EOFError):
            blocking.receive()
        with pytest.raises(EOFError):
            blocking.send(Body())
        with pytest.raises(EOFError):
            await ours.send(Body())
        blocking.close()
        blocking, ours = pair()
        blocking.close()
        with pytest.raises(EOFError):
            await ours.receive()
        with pytest.raises(EOFError):
            await ours.send(Body())
        await ours.aclose()

    trio.run(main)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 64,
        bytes(8),
        encode_frame(b"no message"),
        encode_frame(encode(["of another kind"])),
        encode_frame(encode(Body()))[:-1],
    ],
)
def test_garbage_is_a_wire_error_for_the_daemon(content):
    async def main():
        left, right = socket.socketpair()
        channel = TrioChannel(trio.SocketStream(trio.socket.from_stdlib_socket(right)), Message)
        with left:
            left.sendall(content)
            left.shutdown(socket.SHUT_WR)
            with pytest.raises(WireError):
                await channel.receive()
        await channel.aclose()

    trio.run(main)


def test_nobody_at_a_socket_is_named(tmp_path):
    with pytest.raises(UnreachableError, match="nothing answers at .*trainer.sock"):
        connect_local(tmp_path / "trainer.sock", Message)


@pytest.mark.slow
def test_a_child_gets_its_socket_and_only_the_variables_named_and_ends_with_the_socket(tmp_path, monkeypatch):
    monkeypatch.setenv("AURORA_TEST_SECRET", "of the owner")
    root, log = Path(__file__).parents[2], tmp_path / "child.log"

    async def main():
        async with open_child(
            "tests.local.echo_child",
            Message,
            log=log,
            limits=Limits(nice=3),
            env={"PYTHONPATH": str(root)},
            inherit={"PATH"},
        ) as child:
            said, _ = await child.channel.receive()
            await child.channel.send(Body(), b"segment")
            assert await child.channel.receive() == (Body(), b"segment")
        return said, child.process.returncode

    said, status = trio.run(main)
    assert {"PATH", "PYTHONPATH"} <= set(said.detail.split(",")) <= {"PATH", "PYTHONPATH", "LC_CTYPE"}
    assert said.hint == "nice 3 sigint-ignored True"
    assert status == 0
    assert log.read_text() == "the parent is gone\n"


@pytest.mark.parametrize("words", [[], ["--fd"], ["--fd", "x"], ["--port", "3"], ["--fd", "3", "more"]])
def test_a_child_module_started_by_hand_says_who_starts_it(words):
    with pytest.raises(SystemExit, match="started by its daemon"):
        inherited_channel(Message, words)
