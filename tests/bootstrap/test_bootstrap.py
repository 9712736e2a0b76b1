"""`aurora-bootstrap` as an operator runs it: a process of its own on 127.0.0.1."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from aurora_bootstrap.cli import run
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import PortInUseError, UsageError
from aurora_p2p.net.host import open_control_host
from aurora_p2p.net.rendezvous import advertise, discover

LONG = 60.0


@contextmanager
def bootstrap(home: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running bootstrap and the first line it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "aurora_bootstrap.cli", "serve", "--home", str(home), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


async def meet(address: str) -> list[str]:
    """Two newcomers: one registers, the other finds it there."""
    async with (
        open_control_host(Identity.generate(), ["/ip4/127.0.0.1/tcp/0"], gossip=False) as first,
        open_control_host(Identity.generate(), ["/ip4/127.0.0.1/tcp/0"], gossip=False) as second,
    ):
        peer = await first.connect(address, seconds=LONG)
        await second.connect(address, seconds=LONG)
        await advertise(first, peer, "swarm", seconds=LONG)
        found = await discover(second, peer, "swarm", seconds=LONG)
        assert (first.peer, first.addresses()) in found
        return [peer for peer, _ in found]


def assault(port: int) -> list[socket.socket]:
    """Garbage of several kinds; the sockets that are still open afterwards."""
    left = []
    for opening in (
        os.urandom(4096),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x13/multistream/1.0.0\n",
        b"\x13/multistream/1.0.0\n\x07/noise\n\x00\x20" + os.urandom(32),
        b"\x13/multistream/1.0.0\n\x07/noise\n\xff\xff" + os.urandom(65535),
        b"",
    ):
        visitor = socket.create_connection(("127.0.0.1", port), timeout=LONG)
        visitor.sendall(opening)
        left.append(visitor)
    socket.create_connection(("127.0.0.1", port), timeout=LONG).close()
    return left


@pytest.mark.slow
def test_a_bootstrap_survives_garbage_and_refuses_a_second_on_its_port_and_ends_with_status_0(tmp_path: Path) -> None:
    with bootstrap(tmp_path / "home", "--listen", "127.0.0.1:0", "--json") as (process, line):
        ready = json.loads(line)
        assert ready["event"] == "listening"
        (address,) = ready["addresses"]
        assert address.endswith(f"/p2p/{ready['peer']}")
        key = tmp_path / "home" / "node.key"
        assert key.stat().st_mode & 0o777 == 0o600
        assert Identity.load(key).peer == ready["peer"], "the key is kept, so the address stays the same"

        port = int(address.split("/")[4])
        visitors = assault(port)
        try:
            assert len(trio.run(meet, address)) == 1
        finally:
            for visitor in visitors:
                visitor.close()
        assert len(trio.run(meet, address)) == 2

        with pytest.raises(PortInUseError, match=f"127.0.0.1 port {port}: "):
            run(["serve", "--home", str(tmp_path / "other"), "--listen", f"127.0.0.1:{port}"])
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=LONG)[1] == ""
        assert process.returncode == 0


@pytest.mark.parametrize("wrong", ["4101", "localhost:4101", "127.0.0.1:99999", "127.0.0.1", "1.2.3:4101"])
def test_a_wrong_listen_address_is_a_usage_error_that_shows_a_right_one(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        run(["serve", "--home", str(tmp_path), "--listen", wrong])
    assert "0.0.0.0:4101" in error.value.hint


@pytest.mark.parametrize("words", [[], ["nonsense"], ["serve", "--unknown"]])
def test_a_wrong_command_line_ends_with_status_2(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended_with:
        run(words)
    assert ended_with.value.code == 2
    assert "usage: aurora-bootstrap" in capsys.readouterr().err
