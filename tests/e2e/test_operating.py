"""Operating a real host and a real node from the command line, from `status` to `leave --purge`."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.host.programs import Programs
from aurora_p2p.local.bundle import spellings
from tests.e2e.world import LONG, Swarm

pytestmark = pytest.mark.slow
HOME_FILES = {"stderr.log"}
"""What the test's own `Program` writes into a home beside the daemon."""


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    """A host with one node that has taken part in a step; its own, for this module ends it."""
    with Programs(tmp_path_factory.mktemp("operating")) as programs:
        swarm = Swarm.start(programs)
        swarm.nodes.append(swarm.start_node("node0"))
        swarm.train(1)
        swarm.settle()
        yield swarm


def typed(program, home, *words, cwd=None):
    """What a command prints; it must end with status 0."""
    script = Path(sys.executable).with_name(f"aurora-{program}")
    done = subprocess.run(
        [script, *words, "--home", str(home)], capture_output=True, text=True, timeout=LONG, check=False, cwd=cwd,
        stdin=subprocess.DEVNULL, env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def events(program, home):
    return [json.loads(line) for line in typed(program, home, "logs", "--json", "-n", "100000").splitlines()]


def test_status_why_where_and_settings_answer_for_both_programs(swarm):
    for program, daemon in (("node", swarm.nodes[0]), ("host", swarm.host)):
        assert json.loads(typed(program, daemon.home, "status", "--json"))["version"] >= 1
        assert typed(program, daemon.home, "status").strip()
        assert json.loads(typed(program, daemon.home, "why", "--json"))["why"]
        where = json.loads(typed(program, daemon.home, "where", "--json"))
        assert where["pid"] == daemon.process.pid
        assert "nothing wrong" in typed(program, daemon.home, "config", "check")
        assert typed(program, daemon.home, "config", "show").strip()
        typed(program, daemon.home, "pause")
        assert "paused" in "\n".join(json.loads(typed(program, daemon.home, "why", "--json"))["why"])
        typed(program, daemon.home, "resume")
        assert "512" in typed(program, daemon.home, "caps", "--up-kib", "512")
        typed(program, daemon.home, "caps", "--up-kib", "0")
    assert json.loads(typed("bootstrap", swarm.bootstrap.home, "status", "--json"))["registrations"] >= 1
    assert json.loads(typed("bootstrap", swarm.bootstrap.home, "where", "--json"))["pid"] == swarm.bootstrap.process.pid


def test_the_logs_of_both_sides_agree_on_what_was_receipted_and_hold_no_secret(swarm):
    [node], host = swarm.nodes, swarm.host
    receipts = [line for line in events("node", node.home) if line["event"] == "receipts"]
    accepted = [tuple(sample) for line in receipts for sample in line["accepted"]]
    assert len(accepted) == len(set(accepted)) > 0
    assert all(line["lease"] and line["step"] >= 0 for line in receipts)
    assert [line["event"] for line in events("bootstrap", swarm.bootstrap.home)][:2] == ["started", "listening"]
    for home in (node.home, host.home, swarm.bootstrap.home):
        text = "".join(path.read_text() for path in (home / "logs").iterdir())
        assert swarm.ticket not in text
        for key in home.glob("*.key"):
            assert not any(spelled in text for spelled in spellings(Identity.load(key).seed))
        assert {path.stat().st_mode & 0o777 for path in (home / "logs").iterdir()} == {0o600}


def test_a_support_bundle_of_a_running_host_and_node_holds_their_status_and_no_secret(swarm, tmp_path):
    for program, daemon in (("node", swarm.nodes[0]), ("host", swarm.host), ("bootstrap", swarm.bootstrap)):
        path = tmp_path / f"{program}.tar.gz"
        typed(program, daemon.home, "support-bundle", "--output", str(path))
        with tarfile.open(path) as archive:
            bundle = {entry.name.split("/", 1)[1]: archive.extractfile(entry).read().decode() for entry in archive}
        assert "error" not in json.loads(bundle["status.json"])
        assert bundle["why.txt"].strip()
        text = "\n".join(bundle.values())
        assert swarm.ticket not in text
        assert str(daemon.home) not in text
        for key in daemon.home.glob("*.key"):
            assert not any(spelled in text for spelled in spellings(Identity.load(key).seed))


def test_leave_drains_the_node_and_removes_its_swarm_and_purge_leaves_nothing_of_ours(swarm):
    node = swarm.nodes[0]
    said = typed("node", node.home, "leave")
    assert "removed" in said
    assert node.process.wait(timeout=LONG) == 0
    assert list((node.home / "swarms").iterdir()) == []
    assert (node.home / "node.key").exists()
    typed("node", node.home, "leave", "--purge", "--yes")
    assert {path.name for path in node.home.iterdir()} == HOME_FILES


def test_quit_ends_a_host_that_has_nobody_to_wait_for(swarm):
    assert "drained" in typed("host", swarm.host.home, "quit")
    assert swarm.host.process.wait(timeout=LONG) == 0
    assert events("host", swarm.host.home)[-1]["event"] == "ended"
