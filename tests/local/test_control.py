"""The control socket, over real Unix sockets: what a daemon survives, and what the asking side is told."""

import json
import os
import socket
import stat
import subprocess
import sys
from contextlib import closing

import pytest
import trio
import trio.testing

from aurora_p2p.errors import AuroraError, PortInUseError, StoreError, UnreachableError, UsageError
from aurora_p2p.local.channel import connect_local
from aurora_p2p.local.control import MAX_REQUEST, ask, daemon_pid, open_unix_listener, serve_control, socket_path
from aurora_p2p.wire.control import Noted


async def status(request):
    return {"version": 3, "asked": dict(request)}


async def refuse(request):
    raise UsageError("not today", hint="come back tomorrow")


async def broken(request):
    return 1 // 0


COMMANDS = {"status": status, "refuse": refuse, "broken": broken}


def with_daemon(path, talk):
    """Run `talk` (blocking) in a thread while a daemon serves `path`; returns what it returns."""

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_control, path, COMMANDS)
            await trio.testing.wait_all_tasks_blocked()
            answer = await trio.to_thread.run_sync(talk)
            nursery.cancel_scope.cancel()
        return answer

    return trio.run(main)


def raw(path, content):
    """Send bytes and say no more; returns all that comes back."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(path))
        sock.sendall(content)
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(4096), b""))


@pytest.fixture
def path(tmp_path):
    return socket_path(tmp_path, "control")


def test_a_question_is_answered_with_its_arguments(path):
    answer = with_daemon(path, lambda: ask(path, "status", up_kib=2.5))
    assert answer == {"version": 3, "asked": {"command": "status", "up_kib": 2.5}}


def test_a_bug_in_a_command_costs_one_answer_and_reaches_the_log(path, caplog):
    def ask_twice():
        with pytest.raises(AuroraError, match="broken failed"):
            ask(path, "broken")
        return ask(path, "status")

    assert with_daemon(path, ask_twice)["version"] == 3
    assert "ZeroDivisionError" in caplog.text


def test_the_socket_is_for_its_owner_alone_and_goes_with_the_daemon(path):
    mode = with_daemon(path, lambda: path.stat().st_mode & 0o777)
    assert mode == 0o600
    assert not path.exists()


def test_a_refusal_reaches_the_asking_side_with_its_hint(path):
    def talk():
        with pytest.raises(AuroraError, match="not today") as refused:
            ask(path, "refuse")
        return refused.value.hint

    assert with_daemon(path, talk) == "come back tomorrow"


GARBAGE = [
    b"\x00\xff\xfe garbage\n",
    b"[]\n",
    b"null\n",
    b'"status"\n',
    b'{"command": ["status"]}\n',
    b'{"command": {"status": 1}}\n',
    b'{"command": null}\n',
    b'{"command": "nonsense"}\n',
    b"[" * 60_000 + b"\n",
    b"1" * 60_000 + b"\n",
    b"x" * MAX_REQUEST,
]


@pytest.mark.parametrize("content", GARBAGE, ids=lambda content: repr(content[:20]))
def test_garbage_gets_an_error_and_the_daemon_answers_on(content, path):
    def talk():
        answer = json.loads(raw(path, content))
        assert not answer["ok"]
        assert answer["error"]
        return ask(path, "status")["version"]

    assert with_daemon(path, talk) == 3


def test_whoever_hangs_up_early_harms_nobody(path):
    def talk():
        assert raw(path, b"") == b""
        assert raw(path, b'{"command": "sta') == b""
        return ask(path, "status")["version"]

    assert with_daemon(path, talk) == 3


def test_an_unknown_command_is_told_the_ones_there_are(path):
    def talk():
        with pytest.raises(AuroraError, match="commands are: broken, refuse, status"):
            ask(path, "dance")

    with_daemon(path, talk)


def test_a_second_daemon_is_refused_and_the_first_goes_on(path):
    def second():
        with pytest.raises(PortInUseError, match="another process answers") as refused:
            open_unix_listener(path)
        assert refused.value.exit_status == 73
        assert "--home" in refused.value.hint
        return ask(path, "status")["version"]

    assert with_daemon(path, second) == 3


def test_what_a_killed_daemon_left_behind_is_replaced(path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.is_socket()
    assert with_daemon(path, lambda: ask(path, "status")["version"]) == 3


def test_a_home_that_is_gone_is_a_store_error(tmp_path):
    with pytest.raises(StoreError, match="cannot listen at .*: No such file"):
        open_unix_listener(tmp_path / "gone" / "control.sock")


def test_without_a_daemon_the_asking_side_is_told_what_to_look_at(path):
    with pytest.raises(UnreachableError, match="no daemon answers") as refused:
        ask(path, "status")
    assert refused.value.exit_status == 69
    assert "is it running?" in refused.value.hint


def test_without_a_home_the_asking_side_is_told_to_start_one(tmp_path):
    with pytest.raises(UnreachableError, match="no daemon answers") as refused:
        ask(tmp_path / "home" / "control.sock", "status")
    assert refused.value.hint.startswith(f"there is no {tmp_path}/home: start it first")


@pytest.mark.parametrize("answer", [b"", b"\xff\n", b"nonsense\n", b"7\n"])
def test_something_else_that_answers_there_counts_as_no_daemon(answer, path):
    async def stranger(stream):
        async with stream:
            await stream.receive_some()
            await stream.send_all(answer)

    async def main():
        listener = open_unix_listener(path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, stranger, [listener])
            with pytest.raises(UnreachableError):
                await trio.to_thread.run_sync(lambda: ask(path, "status"))
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_daemon_answers_in_a_home_however_deep(tmp_path):
    home = tmp_path / ("deep" * 30) / ("deeper" * 30)
    home.mkdir(parents=True)
    path = socket_path(home, "control")

    def talk():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert daemon_pid(path) == os.getpid()
        with pytest.raises(PortInUseError):
            open_unix_listener(path)
        with closing(connect_local(path, Noted)):
            return ask(path, "status")

    assert with_daemon(path, talk)["version"] == 3
    assert not path.exists()
    assert daemon_pid(path) is None


def test_the_asking_side_needs_no_trio():
    code = "import sys, aurora_p2p.local.control; print('trio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
