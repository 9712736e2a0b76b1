import sqlite3
from contextlib import contextmanager

import pytest

from aurora_p2p.errors import StoreError
from aurora_p2p.store.proof import problems_of
from aurora_p2p.store.reading import open_copy
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.control import SampleResult
from aurora_p2p.wire.signed import Signed, open_signed
from tests.lease.world import NODES, digest_of, finish
from tests.store.books import DurableWorld

A, B = NODES[:2]


@pytest.fixture
def world(tmp_path):
    """One version, one step of 2 x 4 samples: three of A's are admitted, one was refused, and B holds a lease."""
    world = DurableWorld(tmp_path / "ledger.sqlite")
    world.publish(0)
    world.submit_prompts(0, 2, 4)
    world.ask(B, samples=1)
    lease = world.ask(A, samples=4)
    for sample in lease.samples[:3]:
        world.send(A.peer, finish(A, lease, sample))
    world.send(A.peer, finish(A, lease, lease.samples[3], digest=digest_of(9)))
    yield world
    world.close()


def summary(world):
    with open_copy(world.path) as reading:
        return reading.summary()


def entries(world, step=None):
    with open_copy(world.path) as reading:
        return list(reading.entries(step))


def problems(path, max_lag=1):
    with open_copy(path) as reading:
        return list(problems_of(reading, max_lag))


@contextmanager
def damaged(world):
    """The file, once its host has stopped, for a hand that changes it."""
    world.disk.close()
    connection = sqlite3.connect(world.path)
    yield connection
    connection.commit()
    connection.close()


def test_the_ledger_of_a_running_host_is_counted(world):
    counted = summary(world)
    assert counted["run"] == world.disk.run.hex()
    assert (counted["opened"], counted["newest_version"], counted["highest_seq"]) == (1, 0, 1)
    assert counted["publications"] == {"complete": 1}
    assert counted["steps"] == [{"step": 0, "prompts": 2, "group": 4, "samples": 8, "admitted": 3}]
    assert (counted["live_leases"], counted["samples"], counted["by_node"]) == (2, 3, {A.peer: 3})
    assert counted["refusals"] == {"wrong_digest": 1}


def test_what_was_acknowledged_while_the_host_runs_is_in_the_next_copy(world):
    for version in range(1, 30):  # enough for the write-ahead log to begin anew a few times
        world.publish(version)
        world.submit_prompts(version, 300, 4)
        lease = world.ask(A, version, samples=8)
        world.send(A.peer, *(finish(A, lease, sample) for sample in lease.samples))
        counted = summary(world)
        assert counted["newest_version"] == version
        assert counted["steps"][-1]["admitted"] == len(lease.samples)
    assert problems(world.path) == []


def test_every_row_is_exported_and_a_sample_carries_its_proof(world):
    rows = entries(world)
    assert [row["kind"] for row in rows] == ["publication", "step", "lease", "lease", *["sample"] * 3, "refusal"]
    for row in rows[4:7]:
        signed = Signed(row["node"], bytes.fromhex(row["body"]), bytes.fromhex(row["signature"]))
        result = open_signed(signed, SampleResult, {A.peer})
        assert (list(result.tokens), list(result.logprobs)) == (row["tokens"], row["logprobs"])
    assert entries(world, 7) == []
    assert [row["kind"] for row in entries(world, 0)] == ["step", "lease", "lease", *["sample"] * 3]


def test_nothing_that_is_exported_or_counted_is_secret(world):
    assert world.disk.secret.hex() not in str(entries(world)) + str(summary(world))


def test_reading_changes_nothing(world):
    before = {file.name: file.read_bytes() for file in world.path.parent.iterdir()}
    entries(world)
    assert problems(world.path) == []
    assert {file.name: file.read_bytes() for file in world.path.parent.iterdir()} == before


def test_a_ledger_of_released_forgotten_and_consumed_work_is_sound(world):
    world.publish(1)
    world.submit_prompts(1, 1, 2)
    lease = world.ask(B, 1)
    world.send(B.peer, finish(B, lease, lease.samples[0]))
    world.publish(2)
    world.publish(3)
    world.restart()
    assert problems(world.path) == []


def resign(signed, **changes):
    from msgspec import structs

    from aurora_p2p.wire.signed import seal

    return seal(A, structs.replace(decode(signed.body, SampleResult), **changes))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda signed: Signed(signed.signer, signed.body, bytes(64)), "signature"),
        (lambda signed: Signed(B.peer, signed.body, signed.signature), "its row says"),
        (lambda signed: resign(signed, prompt=1), "its row says"),
        (lambda signed: resign(signed, seed=7), "seed"),
        (lambda signed: resign(signed, digest=digest_of(3)), "never published"),
        (lambda signed: resign(signed, run=bytes(16)), "another run"),
        (lambda signed: resign(signed, fencing=1), "another node's"),
    ],
)
def test_a_sample_that_was_changed_on_disk_is_named(world, change, said):
    with damaged(world) as connection:
        rowid, row = connection.execute("SELECT rowid, signed FROM samples").fetchone()
        changed = encode(change(decode(row, Signed)))
        connection.execute("UPDATE samples SET signed = ? WHERE rowid = ?", (changed, rowid))
    found = problems(world.path)
    assert found
    assert said in found[0]
    assert found[0].startswith("sample ")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE samples SET signed = substr(signed, 1, 40)", "torn"),
        ("UPDATE samples SET version = 1", "its row says"),
        ("DELETE FROM steps", "step 0 is not in the ledger"),
        ("UPDATE leases SET lessee = 'somebody'", "its row says"),
        ("UPDATE publications SET state = 'lost'", "'lost'"),
        ("UPDATE publications SET manifest_hash = NULL", "no manifest"),
        ("UPDATE publications SET version = 5", "never published"),
        ("INSERT INTO leases SELECT x'00', run, step, lessee, granted FROM leases LIMIT 1", "its row says"),
    ],
)
def test_a_row_that_was_changed_on_disk_is_named(world, statement, said):
    with damaged(world) as connection:
        connection.execute(statement)
    assert any(said in problem for problem in problems(world.path))


def test_a_page_that_rotted_is_named(world):
    world.disk.close()
    content = bytearray(world.path.read_bytes())
    content[4096 * 3 : 4096 * 3 + 64] = bytes(64)
    world.path.write_bytes(content)
    try:
        found = problems(world.path)
    except StoreError as error:
        found = [str(error)]
    assert found


def test_a_file_that_is_missing_foreign_or_newer_is_an_error_of_one_line(tmp_path, world):
    with pytest.raises(StoreError, match="does not exist"), open_copy(tmp_path / "none"):
        pass
    (tmp_path / "text").write_text("no database at all, " * 100)
    with pytest.raises(StoreError, match="not a database"), open_copy(tmp_path / "text"):
        pass
    sqlite3.connect(tmp_path / "empty").close()
    with pytest.raises(StoreError, match="no host's ledger"), open_copy(tmp_path / "empty"):
        pass
    with damaged(world) as connection:
        connection.execute("PRAGMA user_version = 999")
    with pytest.raises(StoreError, match="newer version"), open_copy(world.path):
        pass
