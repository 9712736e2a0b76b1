import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
import trio
import trio.testing

from aurora_p2p.errors import StoreError
from aurora_p2p.lease.events import (
    LeaseClosed,
    LeaseGranted,
    ResultRefused,
    SampleAdmitted,
    StepForgotten,
    VersionPublished,
)
from aurora_p2p.lease.pool import WorkPool
from aurora_p2p.store.ledger import Ledger, Unfinished
from aurora_p2p.store.schema import FloorSeen, PublicationAborted, PublicationCompleted, PublicationOpened
from aurora_p2p.types import ArtifactId, Generation, LeaseId, Seq, Step, Version
from aurora_p2p.wire.codec import decode
from aurora_p2p.wire.control import LeaseSample, Reason, SampleResult
from aurora_p2p.wire.signed import seal
from tests.lease.world import NODES, World, digest_of, finish, manifest_of, prompts_of

NODE = NODES[0]


def granted(step, *slots, fencing=1):
    samples = tuple(LeaseSample(prompt, sample, 7, 0) for prompt, sample in slots)
    lease = LeaseId(fencing.to_bytes(16, "big"))
    return LeaseGranted(lease, NODE.peer, Step(step), Version(0), manifest_of(0), digest_of(0), fencing, 5.0, samples)


def admitted(step, prompt, sample, fencing=1):
    lease = fencing.to_bytes(16, "big")
    key = (lease, fencing, b"r" * 16, step, prompt, sample, 7)
    result = SampleResult(*key, 0, manifest_of(0), digest_of(0), 0, (5, 2), (-1.0, -0.25), "stop")
    return SampleAdmitted(seal(NODE, result), result)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


def commit(path, *batches):
    """Open, commit each batch, close; returns what a restart would replay."""
    with closing(Ledger.open(path)) as ledger:

        async def main():
            for batch in batches:
                await ledger.commit(batch)

        trio.run(main)
    return reopened(path)


def reopened(path):
    with closing(Ledger.open(path)) as ledger:
        return ledger.restore()


def test_a_new_ledger_is_empty_and_draws_a_run_and_a_secret(tmp_path):
    first, second = Ledger.open(tmp_path / "a"), Ledger.open(tmp_path / "b")
    assert first.restore() == []
    assert (len(first.run), len(first.secret), first.epoch) == (16, 32, 1)
    assert (first.run, first.secret) != (second.run, second.secret)
    first.close()
    second.close()


def test_run_and_secret_stay_and_the_epoch_grows_with_every_opening(path):
    seen = []
    for _ in range(3):
        ledger = Ledger.open(path)
        seen.append((ledger.run, ledger.secret, ledger.epoch))
        ledger.close()
    assert len({entry[:2] for entry in seen}) == 1
    assert [entry[2] for entry in seen] == [1, 2, 3]


def test_what_was_committed_is_restored_in_an_order_that_replays(path):
    records = [prompts_of(3, 2, 2), granted(3, (0, 0), (0, 1)), admitted(3, 0, 0), ResultRefused(Reason.LAG)]
    assert commit(path, records) == records
    assert commit(path, [ResultRefused(Reason.LAG)])[-1] == ResultRefused(Reason.LAG, 2)


def test_a_closed_lease_is_gone_and_its_admitted_samples_stay(path):
    restored = commit(
        path,
        [prompts_of(0, 1, 2), granted(0, (0, 0))],
        [admitted(0, 0, 0)],
        [LeaseClosed(granted(0).lease, Reason.LEASE_SPENT)],
    )
    assert restored == [prompts_of(0, 1, 2), admitted(0, 0, 0)]


def test_a_forgotten_step_leaves_nothing_behind(path):
    kept = [prompts_of(1, 1, 1), granted(1, (0, 0), fencing=2)]
    gone = [prompts_of(0, 1, 2), granted(0, (0, 1)), admitted(0, 0, 0)]
    assert commit(path, gone + kept, [StepForgotten(Step(0))]) == kept
    plain = sqlite3.connect(path)
    counts = [plain.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("steps", "samples", "leases")]  # noqa: S608
    plain.close()
    assert counts == [1, 0, 1]


def test_no_sample_is_ever_admitted_twice_whoever_asks_for_it(path):
    commit(path, [prompts_of(0, 1, 1), admitted(0, 0, 0)])
    with pytest.raises(StoreError, match="UNIQUE"):
        commit(path, [admitted(0, 0, 0, fencing=2)])
    assert reopened(path) == [prompts_of(0, 1, 1), admitted(0, 0, 0)]


def test_a_batch_is_on_disk_whole_or_not_at_all(path):
    ledger = Ledger.open(path)

    async def main():
        await ledger.commit([prompts_of(0, 1, 1)])
        with pytest.raises(StoreError):
            await ledger.commit([granted(0, (0, 0)), prompts_of(0, 1, 1)])
        with pytest.raises(StoreError):  # memory may be ahead of the disk now
            await ledger.commit([])

    trio.run(main)
    ledger.close()
    assert reopened(path) == [prompts_of(0, 1, 1)]


def test_many_callers_share_few_transactions_and_each_returns_when_its_own_is_on_disk(path):
    ledger = Ledger.open(path)
    batches = []
    write = ledger._write

    def watched(batch):
        write(batch)
        batches.append(batch)

    ledger._write = watched

    async def one(sample):
        record = admitted(0, 0, sample)
        await ledger.commit([record])
        assert any(record in batch for batch in batches)

    async def main():
        await ledger.commit([prompts_of(0, 1, 100)])
        async with trio.open_nursery() as nursery:
            for sample in range(100):
                nursery.start_soon(one, sample)

    trio.run(main)
    ledger.close()
    assert sum(map(len, batches)) == 101
    assert len(batches) <= 4
    assert len(reopened(path)) == 101


def test_an_empty_commit_waits_for_what_is_under_way(path):
    ledger = Ledger.open(path)
    order = []

    async def first():
        await ledger.commit([prompts_of(0, 1, 1)])
        order.append("first")

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await trio.testing.wait_all_tasks_blocked()
            await ledger.commit([])
            order.append("empty")

    trio.run(main)
    ledger.close()
    assert order == ["first", "empty"]


def test_a_cancelled_caller_loses_no_record(path):
    ledger = Ledger.open(path)

    async def main():
        with trio.CancelScope() as scope:
            scope.cancel()
            await ledger.commit([prompts_of(0, 1, 1)])

    trio.run(main)
    ledger.close()
    assert reopened(path) == [prompts_of(0, 1, 1)]


def test_a_seq_is_never_given_twice_even_when_nothing_came_of_it(path):
    seqs = []
    for version in range(3):
        ledger = Ledger.open(path)
        seqs += [trio.run(ledger.reserve_seq, Version(version)) for _ in range(2)]
        ledger.close()
    assert seqs == [1, 2, 3, 4, 5, 6]


def test_a_host_restored_from_a_backup_goes_on_after_its_peers_highest_seq(path):
    commit(path, [FloorSeen(Generation(4), Seq(90))], [FloorSeen(Generation(3), Seq(80))])
    ledger = Ledger.open(path)
    assert ledger.generation == 4
    assert trio.run(ledger.reserve_seq, Version(0)) == 91
    ledger.close()


def test_publications_under_way_at_a_crash_are_named_and_complete_ones_are_versions(path):
    ledger = Ledger.open(path)

    async def main():
        for version in range(4):
            seq = await ledger.reserve_seq(Version(version))
            if version > 0:
                await ledger.commit([PublicationOpened(seq, ArtifactId(bytes([seq]) * 32))])
        await ledger.commit([PublicationCompleted(Seq(2), manifest_of(1), digest_of(1)), PublicationAborted(Seq(3))])

    trio.run(main)
    ledger.close()
    again = Ledger.open(path)
    assert again.unfinished() == [
        Unfinished(Seq(1), Version(0), None),
        Unfinished(Seq(4), Version(3), ArtifactId(bytes([4]) * 32)),
    ]
    assert again.restore() == [VersionPublished(Version(1), manifest_of(1), digest_of(1))]
    again.close()


def test_a_second_process_is_told_that_the_ledger_is_in_use(path):
    ledger = Ledger.open(path)
    script = (
        "import sys; from pathlib import Path; from aurora_p2p.errors import StoreError\n"
        "from aurora_p2p.store.ledger import Ledger\n"
        "try: Ledger.open(Path(sys.argv[1]))\n"
        "except StoreError as error: print(error, '|', error.hint); sys.exit(74)\n"
    )
    other = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    ledger.close()
    assert other.returncode == 74, other.stderr
    assert "database is locked | another process uses it" in other.stdout
    assert other.stdout.count("\n") == 1


def test_a_folder_that_is_missing_and_a_file_that_is_no_ledger_are_named(tmp_path):
    with pytest.raises(StoreError, match="unable to open") as missing:
        Ledger.open(tmp_path / "nowhere" / "ledger.db")
    assert missing.value.hint
    (tmp_path / "text").write_text("this is no database at all, " * 100)
    with pytest.raises(StoreError, match="not a database"):
        Ledger.open(tmp_path / "text")


def ends_here(ledger, pages):
    """SQLite's own way to say that the disk ends after so many pages."""
    ledger._db.execute(f"PRAGMA max_page_count = {pages}").fetchall()


async def is_full(ledger):
    """Wait until the ledger says so."""
    said = trio.Event()
    ledger.on_wait = lambda why: said.set()
    await said.wait()


def test_on_a_full_disk_everybody_waits_and_goes_on_in_order_when_there_is_room(path):
    ledger = Ledger.open(path)
    big, order = prompts_of(1, 60_000, 1), []

    async def one(name, wait):
        order.append((name, await wait))

    async def main():
        await ledger.commit([prompts_of(0, 1, 1)])
        ends_here(ledger, 40)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "big", ledger.commit([big]))
            await is_full(ledger)
            assert "full" in ledger.waits
            nursery.start_soon(one, "seq", ledger.reserve_seq(Version(0)))
            nursery.start_soon(one, "empty", ledger.commit([]))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert order == []
            ends_here(ledger, 1 << 30)
        assert ledger.waits == ""

    trio.run(main)
    ledger.close()
    assert order[0] == ("big", None)
    assert set(order[1:]) == {("seq", 1), ("empty", None)}
    assert reopened(path) == [prompts_of(0, 1, 1), big]


def test_a_full_disk_keeps_nobody_from_stopping_and_a_restart_knows_what_was_acknowledged(path):
    ledger = Ledger.open(path)

    async def main():
        await ledger.commit([prompts_of(0, 1, 1)])
        ends_here(ledger, 40)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ledger.commit, [prompts_of(1, 60_000, 1)])
            nursery.start_soon(ledger.commit, [])
            await is_full(ledger)
            nursery.cancel_scope.cancel()

    trio.run(main)
    ledger.close()
    assert reopened(path) == [prompts_of(0, 1, 1)]


def test_what_a_cancelled_caller_queued_on_a_full_disk_goes_to_disk_before_what_comes_later(path):
    ledger = Ledger.open(path)
    big, later = prompts_of(1, 60_000, 1), prompts_of(2, 1, 1)

    async def main():
        await ledger.commit([prompts_of(0, 1, 1)])
        ends_here(ledger, 40)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ledger.commit, [big])
            await is_full(ledger)
            nursery.cancel_scope.cancel()
        ends_here(ledger, 1 << 30)
        await ledger.commit([later])

    trio.run(main)
    ledger.close()
    assert reopened(path) == [prompts_of(0, 1, 1), big, later]


def test_any_other_failed_write_ends_the_ledger(path):
    ledger = Ledger.open(path)

    async def main():
        await ledger.commit([prompts_of(0, 1, 1)])
        ledger._db.execute("PRAGMA query_only = 1").fetchall()
        for _ in range(2):
            with pytest.raises(StoreError, match="readonly"):
                await ledger.commit([prompts_of(1, 1, 1)])
        with pytest.raises(StoreError, match="readonly"):
            await ledger.reserve_seq(Version(0))

    trio.run(main)
    ledger.close()
    assert reopened(path) == [prompts_of(0, 1, 1)]


def test_a_newer_file_is_not_touched(path):
    Ledger.open(path).close()
    with sqlite3.connect(path) as plain:
        plain.execute("PRAGMA user_version = 999")
    plain.close()
    with pytest.raises(StoreError, match="newer version"):
        Ledger.open(path)


def test_files_copied_in_the_middle_of_the_work_replay_to_a_consistent_pool(tmp_path, path):
    """What a power cut leaves: the database without its last checkpoint, and the write-ahead log as far as it got."""
    world = World()
    ledger = Ledger.open(path)
    copies = []

    async def step(number):
        await ledger.commit(world.ledger)
        world.ledger.clear()
        copy = tmp_path / f"copy{number}"
        copy.mkdir()
        for file in path.parent.glob("ledger.db*"):
            shutil.copy(file, copy)
        copies.append((copy / "ledger.db", world.take(0).admitted))

    async def main():
        seq = await ledger.reserve_seq(Version(0))
        await ledger.commit([PublicationCompleted(seq, manifest_of(0), digest_of(0))])
        world.publish(0)
        world.submit_prompts(0, 3, 4)
        lease = world.ask(NODE)
        for number, sample in enumerate(lease.samples):
            world.send(NODE.peer, finish(NODE, lease, sample))
            await step(number)

    trio.run(main)
    ledger.close()
    for copy, count in copies:
        pool = WorkPool(ledger.run, ledger.secret, 2)
        pool.restore(reopened(copy), now=0.0)
        (status,) = pool.status(now=0.0).steps
        assert (status.admitted, status.admitted + status.leased + status.open) == (count, 12)


WRITER = """
import sys, trio
from pathlib import Path
from aurora_p2p.store.ledger import Ledger
from tests.store.test_ledger import admitted, prompts_of

async def main():
    ledger = Ledger.open(Path(sys.argv[1]))
    await ledger.commit([prompts_of(0, 1, 1000)])
    for sample in range(1000):
        await ledger.commit([admitted(0, 0, sample)])
        seq = await ledger.reserve_seq(0)
        print(sample, seq, flush=True)

trio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("lines", [1, 7, 40])
def test_everything_acknowledged_before_a_kill_is_there_and_no_seq_comes_back(path, lines):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    acknowledged = [writer.stdout.readline().split() for _ in range(lines)]
    writer.kill()
    rest, _ = writer.communicate()
    acknowledged += [line.split() for line in rest.splitlines() if len(line.split()) == 2]
    ledger = Ledger.open(path)
    kept = {record.result.sample for record in ledger.restore() if isinstance(record, SampleAdmitted)}
    assert {int(sample) for sample, _ in acknowledged} <= kept
    assert len(kept) <= len(acknowledged) + 1
    assert trio.run(ledger.reserve_seq, Version(0)) > max(int(seq) for _, seq in acknowledged)
    ledger.close()


def test_a_restored_result_still_carries_its_signature(path):
    (record,) = [r for r in commit(path, [prompts_of(0, 1, 1), admitted(0, 0, 0)]) if isinstance(r, SampleAdmitted)]
    assert decode(record.signed.body, SampleResult) == record.result
    assert record.signed == admitted(0, 0, 0).signed
