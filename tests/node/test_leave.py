"""`aurora-node leave`: a running daemon drains first; then only what is ours goes, and nothing behind a link."""

import os
import select
import subprocess
import sys
from contextlib import contextmanager

import pytest

from aurora_node.cli import main
from aurora_node.config import NodeConfig
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.local.config import render_config
from aurora_p2p.local.log import EventLog, log_path
from aurora_p2p.local.unit import Unit, install_unit, unit_path

FIRST, SECOND = Identity(bytes(range(32))).peer, Identity(bytes(range(1, 33))).peer
DAEMON = """
import os, sys, trio
from pathlib import Path
from aurora_p2p.local.control import serve_control, socket_path

async def main(home, swarm, ends):
    done = trio.Event()
    async def status(request):
        return {"swarm": swarm}
    async def leave(request):
        (home / "drained").write_text("")
        if ends:
            done.set()
        return {}
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, socket_path(home, "control"), {"status": status, "quit": leave})
        print("ready", flush=True)
        await done.wait()
        assert (home / "swarms").exists(), "nothing is removed while the daemon runs"
        nursery.cancel_scope.cancel()

trio.run(main, Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "ends")
"""


@pytest.fixture
def home(tmp_path):
    """A node that has worked for two swarms."""
    home = tmp_path / "home"
    home.mkdir()
    Identity.load_or_create(home / "node.key")
    (home / "node.toml").write_text(render_config(NodeConfig(), "Settings."))
    for swarm in (FIRST, SECOND):
        folder = home / "swarms" / swarm[-16:]
        (folder / "artifacts").mkdir(parents=True)
        (folder / "artifacts" / "body").write_bytes(os.urandom(1 << 16))
        (folder / "memory.sqlite").write_bytes(b"remembered")
    with EventLog.open(log_path(home, "node")):
        pass
    (home / "engine.log").write_text("said")
    return home


def leave(home, *words):
    """(exit status, what a script sees): run as a process without a terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "aurora_node.cli", "leave", "--home", str(home), *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def left(home):
    return sorted(path.name for path in (home / "swarms").iterdir())


@contextmanager
def daemon(home, swarm, ends="ends"):
    process = subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(home), swarm, ends], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def in_process(home, *words, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["leave", "--home", str(home), *words])
    said = capsys.readouterr()
    return ended.value.code, said.out + said.err


@pytest.fixture
def typed(home, monkeypatch, capsys):
    return lambda *words, at=home: in_process(at, *words, monkeypatch=monkeypatch, capsys=capsys)


@pytest.mark.parametrize("name", [FIRST, FIRST[-16:]])
def test_one_swarm_of_several_is_removed_by_name_and_its_bytes_are_told(name, typed, home):
    code, said = typed("--swarm", name)
    assert (code, left(home)) == (0, [SECOND[-16:]])
    freed = int(said.split("removed ")[1].split()[0].replace(",", ""))
    assert freed >= 1 << 16
    assert (home / "node.key").exists()
    assert (home / "node.toml").exists()


def test_which_one_must_be_said_when_there_are_several(typed, home):
    code, said = typed()
    assert (code, len(left(home))) == (2, 2)
    assert FIRST[-16:] in said
    assert typed("--swarm", Identity.generate().peer)[0] == 2
    assert len(left(home)) == 2


def test_purge_needs_a_yes_where_nobody_can_be_asked(typed, home):
    code, said = typed("--purge")
    assert (code, "--yes" in said) == (2, True)
    assert (home / "node.key").exists()


def test_purge_removes_everything_the_home_included(typed, home):
    code, said = typed("--purge", "--yes")
    assert code == 0
    assert "removed " in said
    assert not home.exists()


def test_a_unit_that_would_start_it_again_is_mentioned(typed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    unit = Unit("aurora-node", "Node", ("/bin/true",), 20, background=True)
    install_unit(unit)
    assert "aurora-node uninstall" in typed("--swarm", FIRST)[1]
    unit_path("aurora-node").unlink()
    assert "uninstall" not in typed("--swarm", SECOND)[1]


def test_purge_keeps_what_is_not_ours(typed, home):
    (home / "thesis.tex").write_text("years of work")
    code, said = typed("--purge", "--yes")
    assert (code, "thesis.tex" in said) == (0, True)
    assert sorted(path.name for path in home.iterdir()) == ["thesis.tex"]


@pytest.mark.parametrize("purge", [["--purge"], ["--swarm", FIRST]])
def test_a_folder_that_is_no_nodes_home_is_refused(purge, typed, tmp_path):
    other = tmp_path / "documents"
    (other / "swarms" / FIRST[-16:]).mkdir(parents=True)
    (other / "swarms" / FIRST[-16:] / "photo").write_text("")
    assert typed(*purge, "--yes", at=other)[0] == 2
    assert typed(*purge, "--yes", at=tmp_path / "absent")[0] == 2
    assert (other / "swarms" / FIRST[-16:] / "photo").exists()


def test_the_users_own_folder_is_refused_even_with_a_key_in_it(typed, home, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    assert typed("--purge", "--yes")[0] == 2
    assert (home / "node.key").exists()


def test_no_link_is_followed(typed, home, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("")
    (home / "swarms" / FIRST[-16:] / "artifacts" / "link").symlink_to(outside)
    assert typed("--swarm", FIRST)[0] == 0
    (home / "swarms" / FIRST[-16:]).symlink_to(outside)
    code, said = typed("--swarm", FIRST)
    assert (code, "is a link" in said) == (2, True)
    (home / "swarms").rename(tmp_path / "elsewhere")
    (home / "swarms").symlink_to(tmp_path / "elsewhere")
    assert typed("--swarm", SECOND)[0] == 2
    assert typed("--purge", "--yes")[0] == 0
    assert (outside / "precious").exists()
    assert (tmp_path / "elsewhere" / SECOND[-16:]).exists(), "the link went, not what it points to"


def test_a_home_behind_a_link_is_the_home(typed, home, tmp_path):
    (tmp_path / "link").symlink_to(home)
    assert typed("--swarm", FIRST, at=tmp_path / "link")[0] == 0
    assert left(home) == [SECOND[-16:]]


@pytest.mark.slow
def test_a_running_daemon_drains_and_ends_before_its_swarm_is_removed(home):
    with daemon(home, SECOND) as process:
        code, said = leave(home)
        assert code == 0, said
        assert process.wait(timeout=60) == 0
    assert (home / "drained").exists()
    assert left(home) == [FIRST[-16:]], "the swarm that it worked for, without being told"


@pytest.mark.slow
def test_a_daemon_that_works_for_another_swarm_is_left_alone(home):
    with daemon(home, SECOND) as process:
        assert leave(home, "--swarm", FIRST)[0] == 0
        assert process.poll() is None
        assert not (home / "drained").exists()
    assert left(home) == [SECOND[-16:]]


@pytest.mark.slow
def test_a_daemon_that_does_not_end_keeps_its_folder(home, monkeypatch, capsys):
    monkeypatch.setattr("aurora_node.cli_leave.DRAINED_SECONDS", 0.2)
    with daemon(home, SECOND, "stays") as process:
        code, said = in_process(home, monkeypatch=monkeypatch, capsys=capsys)
        assert (code, f"process {process.pid} has not ended" in said) == (69, True)
    assert len(left(home)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "kept"), [("y", False), ("n", True), ("", True)])
def test_at_a_terminal_purge_asks(answer, kept, home):
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "aurora_node.cli", "leave", "--purge", "--home", str(home)],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    os.close(theirs)
    try:
        asked = b""
        while b"[y/N]" not in asked:
            assert select.select([ours], [], [], 60)[0]
            asked += os.read(ours, 4096)
        assert b"identity key" in asked
        os.write(ours, answer.encode() + b"\n")
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert home.exists() is kept
