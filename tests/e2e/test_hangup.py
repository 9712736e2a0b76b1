"""Somebody closes the terminal in which a program runs: it drains, as if asked to end, and writes nowhere any more."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from aurora_p2p.local.log import log_path
from tests.e2e.world import PRIVATE, free_ports, run_once, tiny_checkpoint
from tests.local.screen.pseudo import SHOWN, PseudoTerminal, open_terminal
from tests.node.test_cli import TICKET

pytestmark = pytest.mark.slow

WAIT_SECONDS = 60.0


def program(module: str, *words: str | Path) -> list[str]:
    return [sys.executable, "-m", module, *map(str, words)]


def environment() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_OFFLINE": "1"}


def hang_up(one: PseudoTerminal) -> int:
    """Close the terminal; the exit status of the program that ran in it."""
    os.close(one.master)
    os.close(one.slave)
    status = one.program.wait(timeout=WAIT_SECONDS)
    one.master, one.slave = os.openpty()  # open_terminal closes them
    return status


def events(home: Path, name: str) -> list[str]:
    return [json.loads(line)["event"] for line in log_path(home, name).read_text().splitlines()]


def host_home(folder: Path) -> Path:
    tiny_checkpoint(folder / "checkpoint")
    control, bulk = free_ports(2)
    where = ["--listen", f"/ip4/127.0.0.1/tcp/{control}", "--bulk-listen", f"127.0.0.1:{bulk}", *PRIVATE]
    run_once(
        ["aurora-host", "init", "--home", str(folder / "host"), "--checkpoint", str(folder / "checkpoint"), *where]
    )
    return folder / "host"


def test_a_host_whose_screen_is_closed_drains(tmp_path: Path) -> None:
    home = host_home(tmp_path)
    with open_terminal(program("aurora_p2p.host.cli", "run", "--home", home), env=environment()) as one:
        one.wait_for(SHOWN)
        assert hang_up(one) == 0
    assert "stopping" in events(home, "host")


def test_a_node_whose_terminal_is_closed_while_it_looks_for_a_host_ends(tmp_path: Path) -> None:
    with open_terminal(node(tmp_path, str(TICKET)), env=environment()) as one:
        one.wait_for("127.0.0.1")
        assert hang_up(one) == 0
    assert "draining" in events(tmp_path / "node", "node")


def test_a_program_that_was_started_to_outlive_its_terminal_does(tmp_path: Path) -> None:
    ignoring = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]  # what nohup does, and it moves the output as well
    with open_terminal([*ignoring, *node(tmp_path, str(TICKET))], env=environment()) as one:
        one.wait_for("127.0.0.1")
        one.program.send_signal(signal.SIGHUP)
        one.program.send_signal(signal.SIGTERM)
        assert one.ended() == 0
    assert events(tmp_path / "node", "node").count("draining") == 1


def node(folder: Path, ticket: str) -> Sequence[str]:
    return program("aurora_node.cli", "join", ticket, "--home", folder / "node")
