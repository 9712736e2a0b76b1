"""A host in a terminal, as its owner has it: a real process, a real pseudo-terminal, a trainer at its socket."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from aurora_p2p.host.programs import wait_until
from aurora_p2p.local.control import ask, socket_path
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.types import Step
from benchmarks.fleet import Fleet
from tests.host.world import begin, digest_of
from tests.lease.world import SAMPLING
from tests.local.screen.pseudo import LEFT, open_terminal

pytestmark = pytest.mark.slow
HOST = str(Path(sys.executable).with_name("aurora-host"))
LONG = 90.0


@pytest.fixture
def running(tmp_path):
    """(the terminal of a new host, its home)."""
    where = ["--listen", "/ip4/127.0.0.1/tcp/0", "--bulk-listen", "127.0.0.1:0", "--local", "127.0.0.0/8"]
    subprocess.run([HOST, "init", "--home", str(tmp_path), *where], check=True, capture_output=True)
    with open_terminal([HOST, "run", "--home", str(tmp_path)], size=(40, 120)) as one:
        one.wait_for("nothing is published yet")
        yield one, tmp_path


def status_of(home):
    return ask(socket_path(home, "control"), "status")


def test_a_host_in_a_terminal_is_paused_capped_resumed_and_stopped_by_its_keys(running):
    one, home = running
    assert b"aurora-node join" in one.seen
    with SwarmClient.open(home) as client:
        client.begin_publish(begin(0))
        client.send_body(bytes(600))
        client.end_publish(digest_of(0))
        one.wait_for("version 0: snapshot of 600 bytes")
        one.wait_for("no node has joined")
        client.submit(Step(0), [(1, 2)], 4, SAMPLING)
        one.wait_for("0/4 admitted")
        client.step_done(Step(0), 0.5, waited_seconds=1.0, trained_seconds=2.0, published_seconds=0.5)
        one.wait_for("waited 1.0, trained 2.0, published 0.5")
    one.type("p")
    one.wait_for("paused by the owner")
    assert status_of(home)["paused"]
    one.type("c100 200\r")
    one.wait_for("up: 100 KiB/s, down: 200 KiB/s")
    one.type("r")
    wait_until(lambda: not status_of(home)["paused"], LONG, "leases are granted again")
    assert LEFT not in one.seen
    one.type("q")
    assert one.ended() == 0
    assert one.restored
    assert one.after.strip() == "the host has stopped"


def test_a_second_screen_attaches_and_leaves_the_host_as_it_was(running):
    one, home = running
    with open_terminal([HOST, "tui", "--home", str(home)], size=(30, 80)) as second:
        second.wait_for("d detach")
        second.wait_for("no node has joined")
        second.type("d")
        assert second.ended() == 0
        assert second.restored
    assert one.program.poll() is None
    one.program.terminate()
    assert one.ended() == 0
    assert one.restored


def test_status_and_why_of_a_working_swarm_name_its_nodes_and_what_each_serves():
    with tempfile.TemporaryDirectory() as folder, Fleet.open(Path(folder), nodes=1) as fleet:
        home = fleet.programs.folder / "host"

        def serving():
            nodes = status_of(home)["nodes"]
            return [node for node in nodes if node["progress"] and node["progress"]["committed"] >= 0]

        wait_until(lambda: bool(serving()), LONG, "a node's report")
        [node] = serving()
        assert node["linked"]
        assert node["progress"]["age_seconds"] < LONG
        assert node["address"].startswith("127.0.0.1:")
        wait_until(lambda: status_of(home)["pipeline"]["committed"] == 1, LONG, "the newest version is served")
        said = json.loads(subprocess.check_output([HOST, "why", "--home", str(home), "--json"]))
        assert said["why"]
