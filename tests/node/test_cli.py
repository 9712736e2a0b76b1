"""The command line of aurora-node: what it refuses before it loads anything heavy, and the status for a person."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

import aurora_node.daemon
from aurora_node.cli import CONFIG, main
from aurora_node.config import NodeConfig
from aurora_p2p.local.config import load_config
from aurora_p2p.wire.ticket import Ticket
from tests.host.world import NODES, SWARM

ROOTS = ":".join(str(Path(aurora_node.daemon.__file__).parents[2] / part) for part in ("", "node"))


def status_of(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


@pytest.fixture
def joined(monkeypatch):
    """What `join` would run the daemon with."""
    seen = []

    def run_node(home, config, ticket, *, as_json, plain):
        seen.append((home, config, ticket, as_json, plain))

    monkeypatch.setattr(aurora_node.daemon, "run_node", run_node)
    return seen


TICKET = Ticket(SWARM, hosts=("/ip4/127.0.0.1/tcp/4100/p2p/" + NODES[0].peer,), local=("127.0.0.0/8",))


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        str(TICKET)[:-4],
        str(TICKET)[:-1] + ("a" if str(TICKET)[-1] != "a" else "b"),
        "aurora1",
        SWARM[:-1],
        str(structs.replace(TICKET, swarm="1" * 52)),
        str(structs.replace(TICKET, local=("everywhere",))),
        str(structs.replace(TICKET, local=("10.0.0.1/8",))),
    ],
)
def test_a_ticket_that_cannot_be_read_is_one_line_status_64_and_leaves_nothing(text, tmp_path, capsys):
    code, out, err = status_of(["join", text, "--home", str(tmp_path / "home")], capsys)
    assert (code, out) == (64, "")
    assert err.count("error: ") == 1
    assert "hint:  " in err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--audit-every", "0"], "audit_every"),
        (["--max-batch", "0"], "max_batch"),
        (["--threads", "-1"], "threads"),
        (["--up-kib", "-5"], "up_kib_per_second"),
        (["--down-kib", "nan"], "down_kib_per_second"),
    ],
)
def test_a_wrong_option_is_refused_by_the_name_of_its_setting(words, key, joined, tmp_path, capsys):
    code, _, err = status_of(["join", str(TICKET), "--home", str(tmp_path), *words], capsys)
    assert (code, joined) == (2, [])
    assert key in err


def test_an_unwritable_home_is_one_line_and_status_74(joined, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    code, _, err = status_of(["join", str(TICKET), "--home", str(tmp_path / "file" / "home")], capsys)
    assert (code, joined) == (74, [])
    assert err.splitlines()[0].startswith("error: cannot write to ")
    assert "--home" in err.splitlines()[1]


def test_the_first_join_writes_a_documented_settings_file_and_options_override_it_for_one_run(joined, tmp_path, capsys):
    home = tmp_path / "home"
    words = ["join", str(TICKET), "--home", str(home), "--json", "--up-kib", "5", "--local", "10.0.0.0/8"]
    assert status_of(words, capsys)[0] == 0
    [(where, config, ticket, as_json, plain)] = joined
    assert (where, ticket, as_json, plain) == (home, TICKET, True, False)
    assert config == NodeConfig(up_kib_per_second=5.0, local=("10.0.0.0/8",))
    assert load_config(home / CONFIG, NodeConfig) == NodeConfig()


def test_an_existing_settings_file_is_read_and_never_rewritten(joined, tmp_path, capsys):
    (tmp_path / CONFIG).write_text('local = ["10.0.0.0/8"]\nmax_batch = 4\n')
    bootstrap = "/ip4/1.1.1.1/tcp/1/p2p/" + SWARM
    words = ["join", SWARM, "--home", str(tmp_path), "--local", "192.168.0.0/16", "--bootstrap", bootstrap]
    assert status_of(words, capsys)[0] == 0
    [(_, config, ticket, _, _)] = joined
    assert config.local == ("10.0.0.0/8", "192.168.0.0/16")
    assert (config.max_batch, config.bootstraps) == (4, (bootstrap,))
    assert ticket == Ticket(SWARM)
    assert (tmp_path / CONFIG).read_text() == 'local = ["10.0.0.0/8"]\nmax_batch = 4\n'


@pytest.mark.parametrize(
    ("words", "why", "remedy"),
    [
        (["--threads", "-1"], "threads: '-1' is not a whole number from 0 to 1024", ""),
        (["--device", "tpu"], "device: there is no 'tpu'", "auto, cpu, cuda"),
        (["--bulk-listen", "nonsense"], "bulk_listen: 'nonsense' is not IP:port", "write it like"),
        (["--bootstrap", "nonsense"], "bootstraps: 'nonsense' is not", "write it like"),
        (["--bootstrap", "/ip4/1.1.1.1/tcp/1"], "does not end in /p2p/<peer id>", "aurora-bootstrap serve"),
        (["--engine", "vllm"], "there is no engine called 'vllm'", "hf, simulated"),
    ],
)
def test_a_wrong_option_ends_a_join_before_it_begins_and_names_the_setting(
    words, why, remedy, joined, tmp_path, capsys
):
    code, _, err = status_of(["join", SWARM, "--home", str(tmp_path), *words], capsys)
    assert (code, joined) == (2, [])
    assert why in err
    assert remedy in err


def test_an_unknown_setting_names_the_nearest_one(joined, tmp_path, capsys):
    (tmp_path / CONFIG).write_text("max_batches = 4\n")
    code, _, err = status_of(["join", SWARM, "--home", str(tmp_path)], capsys)
    assert (code, joined) == (2, [])
    assert "hint:  did you mean 'max_batch'?" in err


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["caps", "--down-kib", "5"]])
def test_without_a_daemon_status_and_caps_end_with_69_and_a_hint(words, tmp_path, capsys):
    code, out, err = status_of([*words, "--home", str(tmp_path)], capsys)
    assert (code, out) == (69, "")
    assert err.endswith("hint:  is it running? is --home the same?\n")


def test_a_refused_ticket_loads_nothing_heavy():
    code = (
        "import sys\nfrom aurora_node.cli import main\n"
        "try:\n    main(['join', 'nonsense'])\n"
        "except SystemExit as ended:\n    print(ended.code, {'trio', 'libp2p', 'torch'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env={"PYTHONPATH": ROOTS}
    )
    assert done.stdout.strip() == "64 set()"
