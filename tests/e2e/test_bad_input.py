"""Whatever a person gets wrong: one line that says what and why, one that says what to do, and a status of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from aurora_node.config import NodeConfig
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.host.programs import Program, wait_until
from aurora_p2p.local.config import render_config
from aurora_p2p.types import Generation, Seq, SwarmId
from aurora_p2p.wire.ticket import parse_ticket
from aurora_p2p.wire.trust import Floor
from tests.e2e.world import ANYWHERE, LONG, TINY, Swarm, free_ports, run_to_end, set_key, tiny_checkpoint

pytestmark = pytest.mark.slow

STRANGER = SwarmId(Identity(bytes(31) + b"\x01").peer)


def join(home: Path, *words: str) -> list[str | Path]:
    return ["aurora-node", "join", *words, "--home", home, "--json"]


def init(home: Path, *words: str | Path) -> list[str | Path]:
    return ["aurora-host", "init", "--home", home, *words]


# ---- tickets and ids


def test_a_ticket_that_was_cut_short(swarm: Swarm, tmp_path: Path) -> None:
    ended = run_to_end(*join(tmp_path / "node", swarm.ticket[:-3]))
    error, hint = ended.complaint
    assert (ended.status, ended.out) == (64, "")
    assert "damaged or cut short" in error
    assert "aurora-host run" in hint
    assert not (tmp_path / "node").exists()


def test_a_swarm_id_with_a_letter_changed(swarm: Swarm, tmp_path: Path) -> None:
    ended = run_to_end(*join(tmp_path / "node", swarm.swarm_id[:-1] + "!"))
    error, hint = ended.complaint
    assert ended.status == 64
    assert "neither a ticket" in error
    assert hint


def test_a_swarm_id_without_anywhere_to_look(tmp_path: Path) -> None:
    ended = run_to_end(*join(tmp_path / "node", STRANGER, *ANYWHERE))
    error, hint = ended.complaint
    assert ended.status == 69
    assert "nowhere to look" in error
    assert "--bootstrap" in hint


def test_a_bootstrap_that_nobody_runs(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    nobody = f"/ip4/127.0.0.1/tcp/{port}/p2p/{STRANGER}"
    ended = run_to_end(*join(tmp_path / "node", STRANGER, "--bootstrap", nobody, *ANYWHERE))
    error, hint = ended.complaint
    assert ended.status == 69
    assert nobody in error
    assert hint


def test_a_bootstrap_that_has_never_heard_of_the_swarm(swarm: Swarm, tmp_path: Path) -> None:
    ended = run_to_end(*join(tmp_path / "node", STRANGER, "--bootstrap", swarm.address, *ANYWHERE))
    error, _ = ended.complaint
    assert ended.status == 69
    assert "knows no host of this swarm" in error


def test_a_ticket_whose_host_belongs_to_another_swarm(swarm: Swarm, tmp_path: Path) -> None:
    wrong = msgspec.structs.replace(parse_ticket(swarm.ticket), swarm=STRANGER)
    ended = run_to_end(*join(tmp_path / "node", str(wrong), *ANYWHERE))
    error, hint = ended.complaint
    assert ended.status == 77
    assert "wrong swarm" in error
    assert "new ticket" in hint


def test_a_ticket_that_is_newer_than_the_host_that_answers(swarm: Swarm, tmp_path: Path) -> None:
    later = msgspec.structs.replace(parse_ticket(swarm.ticket), floor=Floor(Generation(2), Seq(0)))
    ended = run_to_end(*join(tmp_path / "node", str(later), *ANYWHERE))
    error, hint = ended.complaint
    assert ended.status == 75
    assert "generation 1 was revoked by 2" in error
    assert hint


# ---- ports and folders


def test_a_port_that_is_taken(swarm: Swarm, tmp_path: Path) -> None:
    taken = parse_ticket(swarm.ticket).hosts[0].split("/")[4]
    control, bulk = ["--listen", f"/ip4/127.0.0.1/tcp/{taken}"], ["--bulk-listen", f"127.0.0.1:{taken}"]
    bootstrap = ["aurora-bootstrap", "serve", "--home", tmp_path / "bootstrap", "--listen", f"127.0.0.1:{taken}"]
    hosts = []
    for number, where in enumerate(([*ANYWHERE, *control], [*ANYWHERE, *bulk])):
        run_to_end(*init(tmp_path / f"host{number}", *where))
        hosts.append(["aurora-host", "run", "--home", tmp_path / f"host{number}"])
    nodes = [join(tmp_path / "node", swarm.ticket, *ANYWHERE, *where) for where in (control, bulk)]
    for words in (bootstrap, *hosts, *nodes):
        ended = run_to_end(*words)
        error, hint = ended.complaint
        assert ended.status == 73, words
        assert taken in error
        assert "listen" in hint


def test_a_home_that_cannot_be_written(swarm: Swarm) -> None:
    nowhere = Path("/dev/null/home")
    for words in (
        join(nowhere, swarm.ticket),
        init(nowhere),
        ["aurora-bootstrap", "serve", "--home", nowhere, "--listen", "127.0.0.1:0"],
    ):
        ended = run_to_end(*words)
        error, hint = ended.complaint
        assert ended.status == 74, words
        assert str(nowhere) in error
        assert "--home" in hint


def test_a_home_in_use_by_a_running_program(swarm: Swarm) -> None:
    for program, words in (
        (swarm.nodes[1], join(swarm.nodes[1].home, swarm.ticket, *ANYWHERE)),
        (swarm.host, ["aurora-host", "run", "--home", swarm.host.home]),
    ):
        ended = run_to_end(*words)
        _, hint = ended.complaint
        assert ended.status in (73, 74)
        assert hint
        program.status()


# ---- checkpoints


def host_with(tmp_path: Path, checkpoint: Path) -> list[str | Path]:
    """A fresh swarm whose version 0 is this folder: the command that runs it."""
    ended = run_to_end(*init(tmp_path / "host", "--checkpoint", checkpoint, *ANYWHERE))
    assert ended.status == 0, ended.err
    return ["aurora-host", "run", "--home", tmp_path / "host"]


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    ended = run_to_end(*init(tmp_path / "host", "--checkpoint", tmp_path))
    error, hint = ended.complaint
    assert ended.status == 66
    assert str(tmp_path) in error
    assert "checkpoint" in hint
    assert not (tmp_path / "host").exists()


def test_a_checkpoint_that_vanished_after_init(swarm: Swarm, tmp_path: Path) -> None:
    shutil.copytree(swarm.checkpoint, tmp_path / "checkpoint")
    words = host_with(tmp_path, tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "checkpoint")
    ended = run_to_end(*words)
    error, hint = ended.complaint
    assert ended.status == 66
    assert "checkpoint" in error
    assert hint


def test_a_checkpoint_whose_tensors_are_not_those_of_its_configuration(swarm: Swarm, tmp_path: Path) -> None:
    other = tmp_path / "checkpoint"
    tiny_checkpoint(other, msgspec.structs.replace(TINY, layers=2))
    shutil.copy(swarm.checkpoint / "model.safetensors", other)
    ended = run_to_end(*host_with(tmp_path, other))
    error, hint = ended.complaint
    assert ended.status == 66
    assert "layers.1" in error
    assert hint


# ---- what a node cannot take: it stays, and says why


@contextmanager
def node_with(swarm: Swarm, name: str, key: str, value: float) -> Iterator[Program]:
    """A node whose owner has set one key of node.toml."""
    home = swarm.programs.folder / name
    home.mkdir(mode=0o700)
    (home / "node.toml").write_text(render_config(NodeConfig(), "Settings of this node."))
    set_key(home / "node.toml", key, value)
    with swarm.guest(name) as node:
        node.wait_for("joined", LONG)
        yield node


@pytest.mark.parametrize(("key", "word"), [("quota_gib", "quota"), ("max_model_gib", "max_model_gib")])
def test_a_model_too_large_for_what_the_owner_allows(swarm: Swarm, key: str, word: str) -> None:
    with node_with(swarm, key, key, 1e-6) as node:
        wait_until(lambda: node.status()["problem"] != "", LONG, "a problem in the status")
        status = node.status()
        assert word in status["problem"]
        assert status["version"] == -1
        swarm.train(1)
        assert node.process.poll() is None
        assert node.stop() == 0
