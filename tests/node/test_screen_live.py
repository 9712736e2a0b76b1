"""A node in a terminal, as its owner has it: a real swarm, a real pseudo-terminal, every key."""

import sys
import tempfile
from pathlib import Path

import pytest

from aurora_p2p.host.programs import wait_until
from aurora_p2p.local.control import ask, socket_path
from benchmarks.fleet import ENGINE, Fleet
from tests.local.screen.pseudo import LEFT, open_terminal

pytestmark = pytest.mark.slow
NODE = str(Path(sys.executable).with_name("aurora-node"))
LONG = 90.0


@pytest.fixture(scope="module")
def fleet():
    with tempfile.TemporaryDirectory() as folder, Fleet.open(Path(folder), nodes=1) as one:
        yield one


def status_of(home):
    return ask(socket_path(home, "control"), "status")


@pytest.fixture
def joined(fleet, tmp_path):
    """(the terminal of a node that has joined, its home)."""
    where = ["--listen", "/ip4/127.0.0.1/tcp/0", "--bulk-listen", "127.0.0.1:0", "--local", "127.0.0.0/8"]
    words = [NODE, "join", fleet.ticket, "--home", str(tmp_path), *where, "--engine", ENGINE, "--threads", "1"]
    with open_terminal(words, size=(40, 120)) as one:
        one.wait_for("serving version")
        yield one, tmp_path


def test_a_node_in_a_terminal_is_paused_capped_resumed_and_drained_by_its_keys(joined):
    one, home = joined
    one.wait_for("peers: 2 linked")
    one.wait_for("working on step")
    one.type("p")
    one.wait_for("paused by the owner: type")
    assert status_of(home)["presence"]["paused_by"] == "owner"
    one.type("c100 200\r")
    one.wait_for("up: 100 KiB/s, down: 200 KiB/s")
    exchange = status_of(home)["exchange"]
    assert (exchange["up_kib"], exchange["down_kib"]) == (100, 200)
    one.type("r")
    wait_until(lambda: status_of(home)["presence"]["working"], LONG, "the node works again")
    assert LEFT not in one.seen
    one.type("q")
    assert one.ended() == 0
    assert one.restored
    assert one.after.strip() == "the node has stopped"


def test_a_second_screen_attaches_and_leaves_the_node_as_it_was(joined):
    one, home = joined
    with open_terminal([NODE, "tui", "--home", str(home)], size=(30, 80)) as second:
        second.wait_for("d detach")
        second.wait_for("serving version")
        second.type("d")
        assert second.ended() == 0
        assert second.restored
    assert one.program.poll() is None
    assert status_of(home)["fresh"]
    one.program.terminate()
    assert one.ended() == 0
    assert one.restored


def test_the_status_of_a_working_node_names_links_rates_and_history(joined):
    one, home = joined
    one.wait_for("tokens/s")
    wait_until(lambda: len(status_of(home)["recent_tokens_per_second"]) > 1, LONG, "a history of tokens")
    peers = [peer for peer in status_of(home)["exchange"]["peers"] if peer["linked"]]
    assert len(peers) == 2
    assert all(peer["address"].startswith("127.0.0.1:") and peer["standing"] for peer in peers)
    assert sum(peer["standing"]["is_host"] for peer in peers) == 1
    assert status_of(home)["exchange"]["down_rate"] > 0
