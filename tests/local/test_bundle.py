"""support-bundle: what somebody who helps needs, and nothing that must stay here."""

import base64
import io
import json
import os
import sqlite3
import tarfile
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from aurora_bootstrap.cli import run as run_bootstrap
from aurora_node.cli import main as node_main
from aurora_node.config import NodeConfig
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import StoreError
from aurora_p2p.host.cli import main as host_main
from aurora_p2p.host.config import HostConfig
from aurora_p2p.host.keys import init_host
from aurora_p2p.local import bundle as bundle_module
from aurora_p2p.local.bundle import Scrubber, database_figures, spellings, write_bundle
from aurora_p2p.local.config import render_config
from aurora_p2p.local.control import serve_control, socket_path
from aurora_p2p.local.log import EventLog, log_path
from aurora_p2p.local.output import Output
from aurora_p2p.store.ledger import Ledger
from aurora_p2p.store.peers import SwarmMemory
from aurora_p2p.wire.ticket import Ticket

SWARM = Identity(bytes(range(32))).peer
TICKET = str(Ticket(SWARM, hosts=("/ip4/192.0.2.7/tcp/4100/p2p/" + SWARM,)))
PROMPT = "the prompt of the trainer"


def packed(main, home, path, capsys):
    """The members of a bundle by name."""
    with pytest.raises(SystemExit) as ended:
        main(["support-bundle", "--home", str(home), "--output", str(path)])
    assert (ended.value.code, capsys.readouterr().err) == (0, "")
    return members(path)


def members(path):
    with tarfile.open(path) as archive:
        return {
            entry.name.removeprefix("aurora-support/"): archive.extractfile(entry).read().decode() for entry in archive
        }


def say_everything(home, program, secrets):
    """Secrets in every spelling and place that a careless program could put them."""
    with EventLog.open(log_path(home, program)) as log:
        output = Output(as_json=True, log=log)
        for secret in secrets:
            for spelled in spellings(secret):
                output.event("leak", f"said {spelled} aloud", field=spelled, nested=[{"deep": spelled}])
        output.event("ready", f"ticket {TICKET}", ticket=TICKET)
        output.note("lease", prompts=[PROMPT], completion=PROMPT)
        output.event("noticed", "banned a peer", peer=SWARM)
    with (home / "bulk.log").open("a") as file:
        file.write(f"Traceback in {home}/x.py\n")
        file.writelines(f"{spelled}\n" for secret in secrets for spelled in spellings(secret))
        file.write(f"{TICKET}\nthe last words of the child\n")


def assert_nothing_leaked(bundle, home, secrets):
    text = "\n".join(bundle.values())
    for secret in secrets:
        for spelled in spellings(secret):
            assert spelled not in text
            assert json.dumps(spelled)[1:-1] not in text, "not in its escaped form either"
    for hidden in (TICKET, TICKET[8:60], PROMPT, str(home), "aurora-p2p ed25519 seed"):
        assert hidden not in text


@pytest.fixture
def host_home(tmp_path):
    """A host that has keys, a ledger with prompts in it, and logs in which everything was said aloud."""
    home = tmp_path / "host"
    init_host(home, HostConfig(checkpoint=str(home / "checkpoint")))
    ledger = Ledger.open(home / "ledger.sqlite")
    secret = bytes(ledger.secret)
    ledger.close()
    with sqlite3.connect(home / "ledger.sqlite") as db:
        db.execute("INSERT INTO steps VALUES (?, ?, ?)", (b"run", 3, PROMPT.encode()))
    db.close()
    secrets = [secret, *(Identity.load(key).seed for key in sorted(home.glob("*.key")))]
    assert len(secrets) == 6
    (home / "run.toml").write_text(f"# join with {TICKET}\n" + (home / "run.toml").read_text())
    say_everything(home, "host", secrets)
    return home, secrets


def test_no_secret_of_a_host_is_in_its_bundle_wherever_it_was_said(host_home, tmp_path, capsys):
    home, secrets = host_home
    bundle = packed(host_main, home, tmp_path / "bundle.tar.gz", capsys)
    assert_nothing_leaked(bundle, home, secrets)
    assert json.loads(bundle["databases.json"])["ledger.sqlite"]["rows"]["steps"] == 1
    assert json.loads(bundle["databases.json"])["ledger.sqlite"]["schema"] >= 1
    assert "the last words of the child" in bundle["logs/bulk.log"]
    assert SWARM in bundle["logs/host.log"], "ids of peers are what most questions are about"
    assert "max_lag = 1" in bundle["settings.toml"]
    assert json.loads(bundle["where.json"])["home"] == "<home>"
    assert json.loads(bundle["where.json"])["disk"]["free_bytes"] > 0
    about = json.loads(bundle["about.json"])
    assert about["packages"]["libp2p"]
    assert about["memory_bytes"] > 0
    assert "no daemon answers" in json.loads(bundle["status.json"])["error"]


def test_no_secret_of_a_node_is_in_its_bundle(tmp_path, capsys):
    home = tmp_path / "node"
    (home / "swarms" / "abcd").mkdir(parents=True)
    identity = Identity.load_or_create(home / "node.key")
    (home / "ticket").write_text(TICKET)
    (home / "node.toml").write_text(render_config(NodeConfig(), f"Join with {TICKET}"))
    SwarmMemory.open(home / "swarms" / "abcd" / "memory.sqlite", SWARM).close()
    say_everything(home, "node", [identity.seed])
    bundle = packed(node_main, home, tmp_path / "bundle.tar.gz", capsys)
    assert_nothing_leaked(bundle, home, [identity.seed])
    assert json.loads(bundle["databases.json"])["swarms/abcd/memory.sqlite"]["rows"]["peers"] == 0
    assert identity.peer not in bundle["README.txt"]


def test_a_running_daemon_adds_its_status_and_what_it_waits_for(host_home, tmp_path, capsys, monkeypatch):
    home, secrets = host_home
    monkeypatch.setattr("aurora_p2p.host.cli._why", lambda status: [f"waits for {TICKET}"])

    async def status(request):
        return {"version": 7, "ticket": TICKET, "work": {"note": secrets[0].hex()}}

    async def run():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_control, socket_path(home, "control"), {"status": status})
            await trio.testing.wait_all_tasks_blocked()
            pack = partial(packed, rebuilt_main(), home, tmp_path / "bundle.tar.gz", capsys)
            bundle = await trio.to_thread.run_sync(pack)
            nursery.cancel_scope.cancel()
            return bundle

    bundle = trio.run(run)
    assert json.loads(bundle["status.json"])["version"] == 7
    assert bundle["why.txt"].startswith("waits for aurora1(")
    assert "in use by the daemon" in json.loads(bundle["databases.json"])["ledger.sqlite"]
    assert_nothing_leaked(bundle, home, secrets)


def rebuilt_main():
    """aurora-host's main with the `why` of this test: the table holds the function itself."""
    from aurora_p2p.host import cli
    from aurora_p2p.local.cli import build_parser, run_cli, run_command
    from aurora_p2p.local.commands.support import support_command

    table = [support_command(cli.PROGRAM, cli._why)]
    return lambda words: run_cli(lambda: run_command(build_parser(cli.SYNOPSIS, table).parse_args(words), None))


def test_a_bootstrap_has_one_as_well(tmp_path, capsys):
    home = tmp_path / "home"
    identity = Identity.load_or_create(home_with(home) / "node.key")
    say_everything(home, "bootstrap", [identity.seed])
    assert run_bootstrap(["support-bundle", "--home", str(home), "--output", str(tmp_path / "b.tar.gz")]) is None
    assert_nothing_leaked(members(tmp_path / "b.tar.gz"), home, [identity.seed])


def home_with(home):
    home.mkdir()
    return home


def test_the_archive_is_private_is_never_overwritten_and_is_the_same_for_the_same_members(tmp_path):
    first, second = tmp_path / "1.tar.gz", tmp_path / "2.tar.gz"
    write_bundle(first, {"b.txt": "b", "a.txt": "a"})
    write_bundle(second, {"a.txt": "a", "b.txt": "b"})
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_mode & 0o777 == 0o600
    with tarfile.open(fileobj=io.BytesIO(first.read_bytes())) as archive:
        assert archive.getnames() == ["aurora-support/a.txt", "aurora-support/b.txt"]
        assert {(entry.mtime, entry.uid, entry.uname) for entry in archive} == {(0, 0, "")}
    with pytest.raises(StoreError, match="File exists"):
        write_bundle(first, {})


def test_however_long_the_logs_are_only_their_ends_are_packed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bundle_module, "LOG_KEPT", 100_000)
    monkeypatch.setattr(bundle_module, "CHILD_LOG_KEPT", 10_000)
    home = tmp_path / "home"
    Identity.load_or_create(home_with(home) / "node.key")
    path = log_path(home, "node")
    path.parent.mkdir()
    line = json.dumps({"event": "step", "text": "x" * 200}) + "\n"
    for name in ("node.log.2", "node.log.1", "node.log"):
        path.with_name(name).write_text(line * (75_000 // len(line)))
    (home / "engine.log").write_bytes(os.urandom(100_000))
    bundle = packed(node_main, home, tmp_path / "bundle.tar.gz", capsys)
    kept = [len(text) for name, text in bundle.items() if name.startswith("logs/node")]
    assert 90_000 <= sum(kept) <= 100_000
    assert (tmp_path / "bundle.tar.gz").stat().st_size < 50_000


def test_a_home_that_is_not_there_is_one_error(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        node_main(["support-bundle", "--home", str(tmp_path / "absent")])
    assert (ended.value.code, capsys.readouterr().out) == (74, "")


def test_a_damaged_database_is_said_and_does_not_end_the_bundle(tmp_path):
    (tmp_path / "ledger.sqlite").write_bytes(b"SQLite format 3\0" + bytes(100))
    figures = database_figures(tmp_path, ["ledger.sqlite"], running=False)
    assert set(figures["ledger.sqlite"]) == {"error"}
    assert Scrubber(tmp_path).text("fine") == "fine"


def test_reading_a_database_locks_nothing_and_makes_no_file(tmp_path):
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    ledger.close()
    before = sorted(path.name for path in tmp_path.iterdir())
    assert database_figures(tmp_path, ["*.sqlite"], running=False)["ledger.sqlite"]["rows"]["leases"] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_short_words_are_no_secrets_but_every_spelling_of_a_long_one_is():
    assert spellings(b"short") == set()
    secret = bytes(range(200, 232))
    text = f"{secret.hex()} {base64.b64encode(secret).decode()} {base64.urlsafe_b64encode(secret)!r} {secret!r}"
    assert all(spelled not in hide(secret, text) for spelled in spellings(secret))


def hide(secret, text):
    for spelled in sorted(spellings(secret), key=len, reverse=True):
        text = text.replace(spelled, "")
    return text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/root/swarm/root.key", "<home>/root.key"),
        ("/root/notes, and /root.", "~/notes, and ~."),
        ("/root2/x /rootkit <- not ours", "/root2/x /rootkit <- not ours"),
        ("at /root/swarm: full", "at <home>: full"),
    ],
)
def test_the_names_of_folders_are_hidden_and_what_only_looks_like_them_stays(text, shown, monkeypatch):
    monkeypatch.setenv("HOME", "/root")
    assert Scrubber(Path("/root/swarm")).text(text) == shown
