"""Whatever a person gets wrong: one line that says what and why, one that says what to do, and a status of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from aurora_node.config import NodeConfig
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.host.programs import Program, wait_until
from aurora_p2p.local.config import render_config
from aurora_p2p.local.control import ask
from aurora_p2p.types import Generation, Seq, SwarmId
from aurora_p2p.wire.ticket import Ticket, parse_ticket
from aurora_p2p.wire.trust import Floor
from tests.e2e.world import ANYWHERE, LONG, TINY, Ended, Swarm, run_to_end, set_key, tiny_checkpoint

pytestmark = pytest.mark.slow

STRANGER = SwarmId(Identity(bytes(31) + b"\x01").peer)
NOWHERE = Path("/dev/null/home")
AT_ONCE = 2
"""Programs that fail side by side: each is mostly its imports."""
Words = list[str | Path]


@dataclass(frozen=True)
class Place:
    """Where a mistake is made: a running swarm and an empty folder."""

    swarm: Swarm
    folder: Path

    @property
    def ticket(self) -> Ticket:
        return parse_ticket(self.swarm.ticket)

    @property
    def taken(self) -> str:
        """A port that the host listens on."""
        return self.ticket.hosts[0].split("/")[4]

    def join(self, *words: str, home: Path | None = None) -> Words:
        return ["aurora-node", "join", *words, "--home", home or self.folder / "node"]

    def init(self, *words: str | Path) -> Words:
        return ["aurora-host", "init", "--home", self.folder / "host", *words]

    def host(self, *words: str | Path) -> Words:
        """The command that runs a swarm of its own, made with these words."""
        ended = run_to_end(*self.init(*ANYWHERE, *words))
        assert ended.status == 0, ended.err
        return ["aurora-host", "run", "--home", self.folder / "host"]

    def bootstrap(self, home: Path, port: str) -> Words:
        return ["aurora-bootstrap", "serve", "--home", home, "--listen", f"127.0.0.1:{port}"]

    def vanished_checkpoint(self) -> Words:
        shutil.copytree(self.swarm.checkpoint, self.folder / "checkpoint")
        words = self.host("--checkpoint", self.folder / "checkpoint")
        shutil.rmtree(self.folder / "checkpoint")
        return words

    def checkpoint_of_two(self) -> Words:
        """The configuration of one model beside the tensors of another."""
        tiny_checkpoint(self.folder / "checkpoint", msgspec.structs.replace(TINY, layers=2))
        shutil.copy(self.swarm.checkpoint / "model.safetensors", self.folder / "checkpoint")
        return self.host("--checkpoint", self.folder / "checkpoint")


def control(port: str) -> list[str]:
    return ["--bulk-listen", "127.0.0.1:0", "--listen", f"/ip4/127.0.0.1/tcp/{port}"]


def bulk(port: str) -> list[str]:
    return ["--listen", "/ip4/127.0.0.1/tcp/0", "--bulk-listen", f"127.0.0.1:{port}"]


MISTAKES: dict[str, tuple[Callable[[Place], Words], int, str, str]] = {
    # what: (the command, its status, what the error says, what the hint says)
    "a ticket cut short": (
        lambda at: at.join(at.swarm.ticket[:-3]),
        64,
        "damaged or cut short",
        "copy the whole line",
    ),
    "a swarm id with a wrong letter": (
        lambda at: at.join(at.swarm.swarm_id[:-1] + "!"),
        64,
        "neither a ticket",
        "copy the line",
    ),
    "nowhere to look": (lambda at: at.join(STRANGER, *ANYWHERE), 2, "nowhere to look", "--bootstrap"),
    "a host of another swarm": (
        lambda at: at.join(str(msgspec.structs.replace(at.ticket, swarm=STRANGER)), *ANYWHERE),
        77,
        "wrong swarm",
        "new ticket",
    ),
    "a host older than the ticket": (
        lambda at: at.join(str(msgspec.structs.replace(at.ticket, floor=Floor(Generation(2), Seq(0)))), *ANYWHERE),
        75,
        "generation 1 was revoked by 2",
        "newer",
    ),
    "a taken port for a bootstrap": (lambda at: at.bootstrap(at.folder, at.taken), 73, "listen", "--listen"),
    "a taken control port for a host": (lambda at: at.host(*control(at.taken)), 73, "listen", "listen"),
    "a taken bulk port for a host": (lambda at: at.host(*bulk(at.taken)), 73, "listen", "bulk_listen"),
    "a taken control port for a node": (
        lambda at: at.join(at.swarm.ticket, *control(at.taken)),
        73,
        "listen",
        "--listen",
    ),
    "a taken bulk port for a node": (
        lambda at: at.join(at.swarm.ticket, *bulk(at.taken)),
        73,
        "listen",
        "bulk_listen",
    ),
    "an unwritable home for a node": (lambda at: at.join(at.swarm.ticket, home=NOWHERE), 74, str(NOWHERE), "--home"),
    "an unwritable home for a host": (
        lambda at: ["aurora-host", "init", "--home", NOWHERE],
        74,
        str(NOWHERE),
        "--home",
    ),
    "an unwritable home for a bootstrap": (lambda at: at.bootstrap(NOWHERE, "0"), 74, str(NOWHERE), "--home"),
    "the home of a node that runs": (
        lambda at: at.join(at.swarm.ticket, *ANYWHERE, home=at.swarm.nodes[1].home),
        74,
        "is locked",
        "another process uses it",
    ),
    "the home of a host that runs": (
        lambda at: ["aurora-host", "run", "--home", at.swarm.host.home],
        74,
        "is locked",
        "another process uses it",
    ),
    "a folder that is no checkpoint": (
        lambda at: at.init("--checkpoint", at.folder),
        66,
        "holds no config.json",
        "checkpoint",
    ),
    "a checkpoint that vanished": (lambda at: at.vanished_checkpoint(), 66, "config.json", "run.toml"),
    "tensors of another configuration": (lambda at: at.checkpoint_of_two(), 66, "layers.1", "run.toml"),
}


@pytest.fixture(scope="module")
def outcomes(swarm: Swarm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Ended]]]:
    """Every mistake is made once, AT_ONCE side by side."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        made = {}
        for name, (command, *_) in MISTAKES.items():
            place = Place(swarm, tmp_path_factory.mktemp("mistake"))
            made[name] = threads.submit(lambda command=command, place=place: run_to_end(*command(place)))
        yield made


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_with_its_status_and_says_what_why_and_what_to_do(
    mistake: str, outcomes: dict[str, Future[Ended]], swarm: Swarm
) -> None:
    _, status, why, remedy = MISTAKES[mistake]
    ended = outcomes[mistake].result(LONG)
    error, hint = ended.complaint
    assert ended.status == status, ended.err
    assert why in error
    assert remedy in hint
    assert swarm.host.process.poll() is None
    assert all(node.process.poll() is None for node in swarm.nodes)


# ---- what is no mistake: a machine that starts before its network, a node before its host


def test_a_node_that_starts_before_its_host_says_so_and_joins_once_it_is_there(
    outcomes: dict[str, Future[Ended]], swarm: Swarm
) -> None:
    for made in outcomes.values():
        made.result(LONG)  # each is asked of a host that runs
    swarm.kill_host()
    with swarm.guest("early") as node:
        waiting = node.wait_for("waiting", LONG)
        assert "no host of" in waiting["detail"]
        assert any("no host has answered yet: tried" in told for told in ask_why(node))
        swarm.start_host()
        node.wait_for("joined", LONG)
        swarm.settle(node)


def ask_why(node: Program) -> list[str]:
    told: list[str] = ask(node.home / "control.sock", "why")["why"]
    return told


# ---- what a node cannot take: it stays, and says why


def test_a_model_too_large_for_its_owner_leaves_a_node_alive_and_saying_why(swarm: Swarm) -> None:
    with limited(swarm, "quota_gib") as small_disk, limited(swarm, "max_model_gib") as small_machine:
        for node, key in ((small_disk, "quota_gib"), (small_machine, "max_model_gib")):
            node.wait_for("joined", LONG)
            wait_until(lambda node=node: node.status()["problem"] != "", LONG, "a problem in the status")
            status = node.status()
            assert key in status["problem"]
            assert status["version"] == -1
        swarm.train(1)
        assert small_disk.stop() == small_machine.stop() == 0


@contextmanager
def limited(swarm: Swarm, key: str) -> Iterator[Program]:
    """A node whose owner allows next to nothing."""
    home = swarm.programs.folder / key
    home.mkdir(mode=0o700)
    (home / "node.toml").write_text(render_config(NodeConfig(), "Settings of this node."))
    set_key(home / "node.toml", key, 1e-6)
    with swarm.guest(key) as node:
        yield node
