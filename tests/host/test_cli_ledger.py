"""`aurora-host ledger` over a real ledger, as typed."""

import json
import sqlite3

import pytest

from aurora_p2p.host.cli import main
from tests.lease.world import NODES, digest_of, finish
from tests.store.books import DurableWorld

A, B = NODES[:2]


@pytest.fixture
def home(tmp_path):
    """A home whose host runs: two admitted samples of four, one refusal."""
    world = DurableWorld(tmp_path / "ledger.sqlite")
    world.publish(0)
    world.submit_prompts(0, 1, 4)
    lease = world.ask(A)
    good, bad = lease.samples[:2], lease.samples[2]
    world.send(A.peer, *(finish(A, lease, sample) for sample in good), finish(A, lease, bad, digest=digest_of(9)))
    yield tmp_path
    world.close()


@pytest.fixture
def typed(home, capsys):
    """Runs `aurora-host ledger ...` -> (exit status, stdout, stderr)."""

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main(["ledger", *words, "--home", str(home)])
        return (ended.value.code, *capsys.readouterr())

    return run


def test_show_counts_for_a_person_and_for_a_script(typed):
    status, text, _ = typed("show")
    assert status == 0
    assert "2 of 4 samples" in text
    assert f"{A.peer}  2" in text
    assert "1 wrong_digest" in text
    status, line, _ = typed("show", "--json")
    assert (status, json.loads(line)["by_node"]) == (0, {A.peer: 2})


def test_export_writes_lines_to_stdout_or_to_a_file_that_it_does_not_replace_unasked(typed, home):
    status, lines, _ = typed("export", "--step", "0")
    kinds = [json.loads(line)["kind"] for line in lines.splitlines()]
    assert (status, kinds) == (0, ["step", "lease", "sample", "sample"])
    file = home / "out.jsonl"
    status, line, _ = typed("export", "-o", str(file), "--json")
    assert (status, json.loads(line)["rows"]) == (0, 6)
    assert len(file.read_text().splitlines()) == 6
    status, _, error = typed("export", "-o", str(file))
    assert (status, "--force" in error) == (74, True)
    assert typed("export", "-o", str(file), "--force")[0] == 0


def test_verify_proves_a_ledger_and_names_what_was_changed_in_a_copy(typed, home):
    status, text, _ = typed("verify")
    assert status == 0
    assert "2 samples with their signatures and seeds" in text
    copy = home / "copy.sqlite"
    for end in ("", "-wal"):
        copy.with_name(copy.name + end).write_bytes((home / f"ledger.sqlite{end}").read_bytes())
    with sqlite3.connect(copy) as connection:
        connection.execute("UPDATE samples SET node = ? WHERE sample = 1", (B.peer,))
    connection.close()
    status, line, error = typed("verify", "--file", str(copy), "--json")
    found = json.loads(line)
    assert (status, found["sound"]) == (74, False)
    assert found["problems"] == [
        "sample 1 of prompt 0 in step 0: its row says something else than what the node signed"
    ]
    assert "1 problem" in error


def test_a_home_without_a_ledger_is_told_so(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["ledger", "show", "--home", str(tmp_path)])
    assert ended.value.code == 74
    assert "does not exist" in capsys.readouterr().err
