"""systemd units: what they say, that systemd accepts them, and that only what was written is removed."""

import os
import shutil
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_bootstrap.cli import run as run_bootstrap
from aurora_node.cli import main as node_main
from aurora_node.config import DRAIN_SECONDS as NODE_DRAIN_SECONDS
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import UsageError
from aurora_p2p.host import cli_setup as host_setup
from aurora_p2p.host.cli import main as host_main
from aurora_p2p.host.config import DRAIN_SECONDS as HOST_DRAIN_SECONDS
from aurora_p2p.host.config import HostConfig
from aurora_p2p.host.keys import init_host
from aurora_p2p.local.commands.daemon import QUIT_SECONDS
from aurora_p2p.local.unit import BACKOFF_SINCE, Unit, exec_word, render_unit, unit_path
from aurora_p2p.wire.ticket import Ticket

PEER = Identity(bytes(range(32))).peer
TICKET = str(Ticket(PEER, hosts=("/ip4/127.0.0.1/tcp/4100/p2p/" + PEER,)))
ANALYZE = shutil.which("systemd-analyze")


@pytest.fixture(autouse=True)
def config_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def outcome(main, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def settings(text):
    """{key: [values]} of a unit."""
    found = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def bootstrap_main(words):
    raise SystemExit(run_bootstrap(words) or 0)


def verified(path, tmp_path):
    """What systemd says of a unit file: nothing when all is well."""
    (tmp_path / "runtime").mkdir(mode=0o700, exist_ok=True)
    done = subprocess.run(
        [ANALYZE, "verify", "--user", "--man=no", str(path)], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "runtime")},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(ANALYZE is None, reason="this machine has no systemd-analyze")
@pytest.mark.parametrize("home", ["home", "a home with spaces, 100%, $HOME and 'quotes'"])
@pytest.mark.parametrize("program", ["node", "host", "bootstrap"])
def test_systemd_accepts_what_install_writes_without_a_word(program, home, tmp_path, capsys):
    home = tmp_path / home
    if program == "host":
        init_host(home, HostConfig())
    main = {"node": node_main, "host": host_main, "bootstrap": bootstrap_main}[program]
    more = ["--swarm", TICKET] if program == "node" else []
    assert outcome(main, ["install", "--home", str(home), *more], capsys)[0] == 0
    assert verified(unit_path(f"aurora-{program}"), tmp_path) == (0, "")


@pytest.mark.skipif(ANALYZE is None, reason="this machine has no systemd-analyze")
def test_systemd_would_have_said_what_is_wrong(tmp_path):
    path = tmp_path / "wrong.service"
    path.write_text("[Service]\nType=exec\nExecStart=/bin/true\nNoNewPrivilege=yes\n")
    assert "NoNewPrivilege" in verified(path, tmp_path)[1]


def test_a_node_gets_time_to_drain_yields_to_others_and_is_not_restarted_for_a_wrong_setting(tmp_path, capsys):
    (tmp_path / "node.toml").write_text("max_ram_gib = 8.0\n")
    code, out, _ = outcome(node_main, ["install", "--print", "--home", str(tmp_path)], capsys)
    said = settings(out)
    assert code == 0
    assert int(said["TimeoutStopSec"][0]) > NODE_DRAIN_SECONDS
    assert said["KillMode"] == ["mixed"]
    assert said["IOSchedulingClass"] == ["idle"]
    assert int(said["MemoryHigh"][0]) > 8 * 2**30
    assert "2" in said["RestartPreventExitStatus"][0].split()
    assert (said["Restart"], said["NoNewPrivileges"], said["LimitCORE"]) == (["on-failure"], ["yes"], ["0"])
    [command] = said["ExecStart"]
    assert command.startswith("/")
    assert not unit_path("aurora-node").exists()


def test_systemd_waits_longer_than_a_host_drains_and_quit_longer_than_any_daemon(tmp_path):
    unit = render_unit(host_setup.unit(tmp_path, Namespace()))
    assert int(settings(unit)["TimeoutStopSec"][0]) > HOST_DRAIN_SECONDS
    assert max(NODE_DRAIN_SECONDS, HOST_DRAIN_SECONDS) < QUIT_SECONDS


def test_without_a_memory_cap_none_is_written(tmp_path, capsys):
    _, out, _ = outcome(node_main, ["install", "--print", "--home", str(tmp_path)], capsys)
    assert "MemoryHigh" not in settings(out)


def test_pauses_between_restarts_grow_where_systemd_can():
    unit = Unit("aurora-node", "Node", ("/bin/true",), 20, background=True, systemd=BACKOFF_SINCE)
    assert "RestartSteps" in settings(render_unit(unit))
    old = Unit("aurora-node", "Node", ("/bin/true",), 20, background=True, systemd=BACKOFF_SINCE - 1)
    assert "RestartSteps" not in settings(render_unit(old))


def test_the_ticket_is_in_a_private_file_and_not_on_the_command_line(tmp_path, capsys):
    home = tmp_path / "home"
    assert outcome(node_main, ["install", "--swarm", TICKET, "--home", str(home)], capsys)[0] == 0
    assert (home / "ticket").read_text() == f"{TICKET}\n"
    assert (home / "ticket").stat().st_mode & 0o777 == 0o600
    text = unit_path("aurora-node").read_text()
    assert TICKET not in text
    assert f"@{home / 'ticket'}" in text


@pytest.mark.parametrize("words", [["--swarm", "nonsense"], ["--swarm", "@/nowhere"], []])
def test_without_a_ticket_that_can_be_read_nothing_is_written(words, tmp_path, capsys):
    code, out, err = outcome(node_main, ["install", *words, "--home", str(tmp_path / "home")], capsys)
    assert (code, out, err.count("error: ")) == (64, "", 1)
    assert not unit_path("aurora-node").exists()
    assert not (tmp_path / "home").exists()


def test_a_host_without_a_swarm_is_not_installed(tmp_path, capsys):
    code, _, err = outcome(host_main, ["install", "--home", str(tmp_path)], capsys)
    assert (code, "aurora-host init" in err) == (74, True)
    assert not unit_path("aurora-host").exists()


def test_install_and_uninstall_leave_everything_as_it_was(tmp_path, config_home, capsys):
    home = tmp_path / "home"
    home.mkdir()
    (home / "node.key").write_text("mine")
    folder = unit_path("aurora-node").parent
    folder.mkdir(parents=True)
    (folder / "other.service").write_text("[Service]\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert outcome(node_main, ["install", "--swarm", PEER, "--home", str(home)], capsys)[0] == 0
    code, out, _ = outcome(node_main, ["install", "--home", str(home)], capsys)
    assert code == 0, "again, with the ticket of before"
    assert f"aurora-node logs --home {home}\n" in out, "what to type next finds the same home"
    code, out, _ = outcome(node_main, ["uninstall", "--home", str(home)], capsys)
    assert code == 0
    assert str(unit_path("aurora-node")) in out
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    code, out, _ = outcome(node_main, ["uninstall", "--home", str(home)], capsys)
    assert (code, out.startswith("nothing to remove")) == (0, True)


def test_a_unit_of_somebody_elses_is_neither_replaced_nor_removed(tmp_path, capsys):
    path = unit_path("aurora-bootstrap")
    path.parent.mkdir(parents=True)
    path.write_text("[Service]\nExecStart=/bin/true\n")
    with pytest.raises(UsageError, match="was not written by"):
        run_bootstrap(["install", "--home", str(tmp_path)])
    with pytest.raises(UsageError, match="was not written by"):
        run_bootstrap(["uninstall", "--home", str(tmp_path)])
    assert path.read_text() == "[Service]\nExecStart=/bin/true\n"


def test_a_link_in_the_place_of_the_unit_is_left_alone(tmp_path):
    path, target = unit_path("aurora-bootstrap"), tmp_path / "target"
    path.parent.mkdir(parents=True)
    run_bootstrap(["install", "--home", str(tmp_path)])
    path.rename(target)
    path.symlink_to(target)
    with pytest.raises(UsageError):
        run_bootstrap(["uninstall", "--home", str(tmp_path)])
    assert path.is_symlink()
    assert target.exists()


def test_an_enabled_unit_is_disabled_first(tmp_path):
    run_bootstrap(["install", "--home", str(tmp_path)])
    wants = unit_path("aurora-bootstrap").parent / "default.target.wants"
    wants.mkdir()
    (wants / "aurora-bootstrap.service").symlink_to(unit_path("aurora-bootstrap"))
    with pytest.raises(UsageError, match="still enabled") as refused:
        run_bootstrap(["uninstall", "--home", str(tmp_path)])
    assert refused.value.hint == "systemctl --user disable --now aurora-bootstrap.service"
    assert unit_path("aurora-bootstrap").exists()


def test_the_program_in_the_unit_is_this_installation(tmp_path, capsys):
    _, out, _ = outcome(node_main, ["install", "--print", "--home", str(tmp_path)], capsys)
    program = Path(settings(out)["ExecStart"][0].split()[0])
    assert subprocess.run([program, "--help"], capture_output=True, check=True, timeout=60).stdout.startswith(b"usage")


@given(st.text())
def test_a_word_is_written_so_that_systemd_reads_it_back_or_is_refused(word):
    try:
        written = exec_word(word)
    except UsageError:
        assert not word.isprintable()
        return
    assert "\n" not in written
    body = written[1:-1] if written.startswith('"') else written
    assert body.replace("$$", "$").replace("%%", "%").replace('\\"', '"').replace("\\\\", "\\") == word
