"""Garbage on every port and every local socket: it costs its sender a connection, and nobody else anything."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from aurora_p2p.host.programs import Program, descendants
from tests.e2e.world import LONG, Swarm

pytestmark = pytest.mark.slow

OPENINGS = (
    b"",
    b"\n",
    os.urandom(70_000),
    bytes(70_000),
    b"\xff" * 70_000,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500),  # TLS, then nonsense
    b"\x13/multistream/1.0.0\n\x07/noise\n\x00\x20" + os.urandom(32),
    b'{"command": ["status"], "x": ' + b"[" * 60_000 + b"\n",
    b'{"command": "caps", "up_kib": "fast"}\n',
    (4).to_bytes(4, "big") + (1 << 31).to_bytes(4, "big") + b"\x91\xa6att",
)


LASTING = ("aurora_p2p.net.bulk", "aurora_p2p.engine.worker")
"""Children that live as long as their daemon; those that fold artifacts come and go."""


def family(program: Program) -> list[psutil.Process]:
    """The program and those of its children that last."""
    return [psutil.Process(program.process.pid), *descendants(program.process.pid, *LASTING)]


def listening(program: Program) -> set[int]:
    """TCP ports of a program and its children."""
    connections = [connection for one in family(program) for connection in one.net_connections("tcp")]
    ports = {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}
    assert ports, f"{program.name} listens nowhere"
    return ports


def visitors(where: int | Path) -> Iterator[socket.socket]:
    """One connection after the other, each with its own garbage."""
    for opening in OPENINGS:
        visitor = socket.socket(socket.AF_INET if isinstance(where, int) else socket.AF_UNIX, socket.SOCK_STREAM)
        visitor.settimeout(LONG)
        visitor.connect(("127.0.0.1", where) if isinstance(where, int) else str(where))
        with suppress(BrokenPipeError, ConnectionResetError):
            visitor.sendall(opening)
        yield visitor


def test_garbage_on_every_port_and_socket_harms_nothing(swarm: Swarm) -> None:
    programs = [swarm.bootstrap, swarm.host, *swarm.nodes]
    ports = {program.name: listening(program) for program in programs}
    assert [len(ports[program.name]) for program in programs] == [1, *[2] * (1 + len(swarm.nodes))]
    sockets = [program.home / "control.sock" for program in programs[1:]] + [swarm.host.home / "trainer.sock"]
    everywhere: list[int | Path] = [*sorted(port for each in ports.values() for port in each), *sockets]
    families = [family(program) for program in programs]
    with ExitStack() as stack:
        for where in everywhere:
            for visitor in visitors(where):
                stack.enter_context(visitor)
        swarm.train(2)  # while they are all still there
        swarm.settle()
    swarm.train(1)
    swarm.settle()
    assert all(program.process.poll() is None for program in programs)
    assert [family(program) for program in programs] == families
    for program in programs:
        assert "Traceback" not in program.log.read_text(), program.tail()
