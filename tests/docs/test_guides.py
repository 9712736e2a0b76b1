"""The guides for operators and volunteers: what they show runs, and they leave nothing out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aurora_p2p.local.config import render_config
from aurora_p2p.wire.control import Reason
from tests.docs.walk import Session, shell_lines

DOCS = Path(__file__).parents[2] / "docs"
OPERATOR, VOLUNTEER = DOCS / "operator.md", DOCS / "volunteer.md"
MUST_SHOW = {
    OPERATOR: [
        "aurora-bootstrap serve", "aurora-host init", "aurora-host run", "aurora-host status", "aurora-host why",
        "aurora-host where", "aurora-host config check", "aurora-host caps", "aurora-host pause", "aurora-host resume",
        "aurora-host delegate", "aurora-host support-bundle", "aurora-host install --print", "aurora-host quit",
    ],
    VOLUNTEER: [
        "aurora-node join", "aurora-node status", "aurora-node why", "aurora-node where", "aurora-node config check",
        "aurora-node caps", "aurora-node pause", "aurora-node resume", "aurora-node support-bundle",
        "aurora-node install --print", "aurora-node quit", "aurora-node leave --purge",
    ],
}  # fmt: skip


@pytest.mark.parametrize("guide", MUST_SHOW, ids=lambda path: path.name)
def test_a_guide_runs_every_command_that_its_reader_needs(guide: Path) -> None:
    lines = list(shell_lines(guide))
    assert [command for command in MUST_SHOW[guide] if not any(line.startswith(command) for line in lines)] == []


def test_every_refusal_has_a_row_in_the_operators_troubleshooting_table() -> None:
    table = OPERATOR.read_text().partition("## Troubleshooting")[2]
    named = set(re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines() if "|" in line)))
    assert [reason.value for reason in Reason if reason.value not in named] == []


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    from tests.e2e.world import free_ports, tiny_checkpoint  # torch

    tiny_checkpoint(tmp_path / "my-model")
    ports = dict(zip(("4100", "4101", "4102"), map(str, free_ports(3)), strict=True))
    with Session(tmp_path, ports) as session:
        yield session


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_operators_guide_runs_from_top_to_bottom(session: Session) -> None:
    from tests.e2e.world import LONG, wait_until

    for line in shell_lines(OPERATOR):
        session.type(line)
    assert restored(session)["generation"] == 2
    wait_until(lambda: bool(restored(session)["version"] == 0), LONG, "version 0 after the restore")
    assert not (session.folder / ".config" / "systemd" / "user" / "aurora-host.service").exists()
    assert (session.folder / "host-report.tar.gz").stat().st_size > 0


def restored(session: Session) -> dict[str, Any]:
    """The status of the host that was started from its backup."""
    session.type("aurora-host status --json")
    status: dict[str, Any] = json.loads(session.said["aurora-host status --json"])
    return status


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_volunteers_guide_runs_from_top_to_bottom_and_leaves_nothing_behind(session: Session) -> None:
    session.variables["AURORA_HOME"] = str(session.folder / "operator")
    for line in shell_lines(OPERATOR):
        if line.startswith(("aurora-bootstrap serve", "aurora-host init", "aurora-host run")):
            session.type(line)
            if line.startswith("aurora-host run"):
                break
    for line in shell_lines(VOLUNTEER):
        if line.startswith("aurora-node join"):
            stay_at_home(session.folder / "aurora" / "node")
        session.type(line)
    assert not (session.folder / "aurora" / "node").exists()
    assert [path.name for path in session.folder.rglob("*.service")] == []


def stay_at_home(home: Path) -> None:
    """The settings of a careful owner, written before the first join: loopback only, one thread."""
    from aurora_node.config import NodeConfig

    home.mkdir(mode=0o700, parents=True)
    config = NodeConfig(listen=("/ip4/127.0.0.1/tcp/0",), bulk_listen="127.0.0.1:0", threads=1)
    (home / "node.toml").write_text(render_config(config, "settings"))
