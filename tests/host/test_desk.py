"""The publication desk over a real ledger and store, through crashes, races and trainers that go away."""

import sqlite3

import pytest
import trio

from aurora_p2p.artifact.manifest import artifact_id_of
from aurora_p2p.artifact.retention import RETAIN_MOST
from aurora_p2p.errors import AuroraError, DiskFullError, ShapeError, StaleError, StoreError
from aurora_p2p.host import desk
from aurora_p2p.local import faults
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import Armed, DiskRule, Plan
from aurora_p2p.store.schema import FloorSeen
from aurora_p2p.swarm.catalog import MAX_KNOWN
from aurora_p2p.swarm.events import Aborted, Finished, Produced, Publish, Restored
from aurora_p2p.train.publish import MAX_DELTAS
from aurora_p2p.types import NO_BASE, Generation, Version
from aurora_p2p.wire.signed import open_signed
from aurora_p2p.wire.trust import Abort
from tests.host.world import KEYS, SEGMENT, SWARM, begin, digest_of, open_host


def states(home):
    """seq -> state of every publication, after the ledger was closed."""
    with sqlite3.connect(home / "ledger.sqlite") as db:
        rows = dict(db.execute("SELECT seq, state FROM publications"))
    db.close()
    return rows


def aborts(host):
    return [open_signed(event.abort, Abort, {KEYS.publish.peer}) for event in host.driver.of(Aborted)]


def test_a_publication_is_offered_grown_and_finished_in_that_order(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            await host.desk.begin(begin(0), SEGMENT)
            assert host.desk.busy
            assert host.desk.newest is None
            await host.desk.add(bytes(2 * SEGMENT))
            await host.desk.add(bytes(10))
            manifest = await host.desk.end(digest_of(0))
            kinds = [type(event) for event in host.driver.events]
            assert kinds == [Publish, Produced, Produced, Finished]
            first, last = host.driver.of(Produced)
            assert (list(first.indices), first.last_bytes) == ([0, 1], None)
            assert (list(last.indices), last.last_bytes) == ([2], 10)
            assert host.driver.events[0].manifest is manifest
            assert not host.desk.busy
            assert (host.desk.newest.seq, host.desk.newest.version, host.desk.completed) == (1, 0, 1)

    trio.run(main)
    assert states(tmp_path) == {1: "complete"}


def test_the_seq_is_on_disk_before_the_header_is_offered(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            feed, seen = host.driver.feed, []

            async def look(event):
                seen.append([(row.seq, row.artifact) for row in host.ledger.unfinished()])
                assert host.store.body_path(event.manifest.artifact).exists()
                await feed(event)

            host.driver.feed = look
            await host.desk.begin(begin(0), SEGMENT)
            [publish] = host.driver.events
            assert seen == [[(1, publish.manifest.artifact)]]
            assert publish.manifest.header.seq == 1

    trio.run(main)


def test_a_delta_follows_the_newest_publication_and_names_it(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            base = await host.publish(0)
            await host.publish(1)
            header = host.driver.of(Publish)[1].manifest.header
            assert (header.kind, header.base_version, header.base_manifest) == ("delta", 0, base.manifest_hash)
            assert host.desk.newest.seq == 2

    trio.run(main)


def test_only_what_follows_the_newest_publication_may_begin(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            with pytest.raises(StaleError, match="base is not the newest"):
                await host.desk.begin(begin(1, kind="delta", base_version=0, base_digest=digest_of(0)), SEGMENT)
            await host.publish(3)
            newest = host.desk.newest
            for wrong in (
                {"base_digest": digest_of(2)},
                {"base_version": 2},
                {"base_version": NO_BASE, "base_digest": b""},
            ):
                with pytest.raises(StaleError, match="base is not the newest") as refused:
                    await host.desk.begin(begin(4, newest, **wrong), SEGMENT)
                assert refused.value.hint == "attach again, or publish a snapshot"
            with pytest.raises(StaleError, match="version 2 is out of order"):
                await host.desk.begin(begin(2), SEGMENT)
            with pytest.raises(StaleError, match="version 3 is out of order"):
                await host.desk.begin(begin(3, newest), SEGMENT)
            with pytest.raises(ShapeError, match="a snapshot has no base"):
                await host.desk.begin(begin(4, base_version=3), SEGMENT)
            assert not host.desk.busy
            await host.desk.begin(begin(3), SEGMENT)  # the same version as a snapshot, for late joiners
            await host.desk.end(digest_of(3))
            assert (host.desk.newest.seq, host.desk.newest.kind) == (2, "snapshot")

    trio.run(main)
    assert states(tmp_path) == {1: "complete", 2: "complete"}


def test_a_home_whose_artifacts_are_lost_goes_on_above_the_versions_that_its_ledger_knows(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            await host.desk.restore([], Version(6))
            with pytest.raises(StaleError, match="version 0 is out of order: 6 is the lowest"):
                await host.desk.begin(begin(0), SEGMENT)
            await host.publish(6)

    trio.run(main)


def test_of_two_that_begin_at_once_one_is_refused_and_the_other_completes(tmp_path):
    async def main():
        outcomes = []

        async def start(host):
            try:
                await host.desk.begin(begin(0), SEGMENT)
                outcomes.append("begun")
            except AuroraError as error:
                outcomes.append(str(error))

        async with open_host(tmp_path) as host:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(start, host)
                nursery.start_soon(start, host)
            assert sorted(outcomes) == ["another publication is under way", "begun"]
            assert len(host.driver.of(Publish)) == 1
            await host.desk.end(digest_of(0))

    trio.run(main)
    assert states(tmp_path) == {1: "complete"}


def test_a_publication_given_up_is_followed_by_a_signed_abort_and_its_seq_is_not_used_again(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            await host.desk.begin(begin(0), SEGMENT)
            await host.desk.add(bytes(SEGMENT))
            await host.desk.abort()
            [publish] = host.driver.of(Publish)
            assert aborts(host) == [Abort(SWARM, 1, publish.manifest.artifact)]
            assert host.store.reserved_bytes == 0
            assert (host.desk.busy, host.desk.newest) == (False, None)
            await host.desk.abort()  # nothing is open: nothing happens
            assert len(aborts(host)) == 1
            assert (await host.publish(0)).seq == 2

    trio.run(main)
    assert states(tmp_path) == {1: "aborted", 2: "complete"}


def test_what_the_exchange_refuses_is_aborted_and_the_next_may_begin(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            host.driver.fail = ShapeError("the header is too large for a frame")
            with pytest.raises(ShapeError, match="too large"):
                await host.desk.begin(begin(0), SEGMENT)
            assert not host.desk.busy
            assert [abort.seq for abort in aborts(host)] == [1]
            assert (await host.publish(0)).seq == 2

    trio.run(main)
    assert states(tmp_path) == {1: "aborted", 2: "complete"}


def test_what_does_not_fit_the_quota_leaves_the_desk_free(tmp_path):
    async def main():
        async with open_host(tmp_path, quota_bytes=20_000) as host:
            with pytest.raises(StoreError, match="does not fit") as refused:
                await host.desk.begin(begin(0, size_bound=30_000), SEGMENT)
            assert refused.value.hint == "raise quota_gib in the settings"
            assert not host.desk.busy
            assert host.driver.events == []
            assert (await host.publish(0)).seq == 2

    trio.run(main)


def test_bytes_without_a_publication_are_refused(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            with pytest.raises(AuroraError, match="no publication is open"):
                await host.desk.add(b"weights")
            with pytest.raises(AuroraError, match="no publication is open"):
                await host.desk.end(digest_of(0))

    trio.run(main)


def test_a_host_that_died_half_way_aborts_that_publication_and_offers_the_complete_ones_again(tmp_path):
    async def before():
        async with open_host(tmp_path) as host:
            complete = await host.publish(0)
            await host.publish(1)
            await host.desk.begin(begin(2, host.desk.newest), SEGMENT)
            await host.desk.add(bytes(3 * SEGMENT))
            return complete, host.desk.newest, host.driver.of(Publish)[-1].manifest.artifact

    async def after(first, newest, half):
        async with open_host(tmp_path) as host:
            assert aborts(host) == [Abort(SWARM, 3, half)]
            restored = host.driver.of(Restored)
            assert [event.manifest.artifact for event in restored] == [first.artifact, newest.artifact]
            assert all(event.origin for event in restored)
            assert [set(event.have) for event in restored] == [{0}, {0}]
            assert host.desk.newest == newest
            assert not (tmp_path / "artifacts" / half.hex()).exists()
            assert (await host.publish(2)).seq == 4

    trio.run(after, *trio.run(before))
    assert states(tmp_path) == {1: "complete", 2: "complete", 3: "aborted", 4: "complete"}


def test_a_host_that_died_before_the_ledger_knew_of_the_end_aborts_although_all_bytes_are_there(tmp_path):
    async def before():
        async with open_host(tmp_path) as host:
            await host.desk.begin(begin(0), SEGMENT)
            publication = host.desk._open
            publication.add(b"weights")
            publication.finish(digest_of(0), now=boottime())

    async def after():
        async with open_host(tmp_path) as host:
            assert [abort.seq for abort in aborts(host)] == [1]
            assert (host.driver.of(Restored), host.desk.newest) == ([], None)
            assert host.store.reserved_bytes == 0

    trio.run(before)
    trio.run(after)
    assert states(tmp_path) == {1: "aborted"}


def test_an_abort_is_repeated_by_every_start_because_a_node_may_have_been_away_each_time(tmp_path):
    async def before():
        async with open_host(tmp_path) as host:
            await host.desk.begin(begin(0), SEGMENT)
            await host.desk.add(bytes(2 * SEGMENT))

    async def after():
        async with open_host(tmp_path) as host:
            assert [abort.seq for abort in aborts(host)] == [1]

    trio.run(before)
    for _ in range(3):
        trio.run(after)


def test_a_publication_that_a_full_disk_cuts_off_can_be_given_up_and_begun_anew(tmp_path, monkeypatch):
    async def main():
        async with open_host(tmp_path) as host:
            full = Armed(Plan((DiskRule("write", "*/body", hit=0),)), "host")
            await host.desk.begin(begin(0), SEGMENT)
            monkeypatch.setattr(faults, "_armed", full)
            with pytest.raises(DiskFullError):
                await host.desk.add(bytes(2 * SEGMENT))
            await host.desk.abort()
            assert host.store.reserved_bytes == 0
            monkeypatch.setattr(faults, "_armed", None)
            assert (await host.publish(0)).seq == 2

    trio.run(main)
    assert states(tmp_path) == {1: "aborted", 2: "complete"}


def test_a_host_that_died_with_a_bare_seq_sends_no_abort_for_what_nobody_saw(tmp_path):
    async def before():
        async with open_host(tmp_path) as host:
            await host.ledger.reserve_seq(0)

    async def after():
        async with open_host(tmp_path) as host:
            assert host.driver.events == []
            assert (await host.publish(0)).seq == 2

    trio.run(before)
    trio.run(after)


def test_a_host_that_died_between_abort_and_removal_does_not_keep_the_bytes_for_ever(tmp_path, monkeypatch):
    async def before():
        async with open_host(tmp_path) as host:
            await host.desk.begin(begin(0), SEGMENT)
            monkeypatch.setattr(host.store, "retire", lambda artifact: False)  # killed here
            await host.desk.abort()
            assert host.store.reserved_bytes == 10_000

    async def after():
        async with open_host(tmp_path) as host:
            assert host.store.reserved_bytes == 0
            assert [abort.seq for abort in aborts(host)] == [1], "whoever has not heard of it yet hears of it now"

    trio.run(before)
    trio.run(after)


def test_the_abort_names_the_artifact_whose_header_left(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            await host.desk.begin(begin(0), SEGMENT)
            header = host.driver.of(Publish)[0].manifest.signed_header
            await host.desk.abort()
            assert aborts(host)[0].artifact == artifact_id_of(header)

    trio.run(main)


def test_a_home_restored_from_a_backup_knows_what_it_never_published_and_never_reuses_that_number(tmp_path):
    async def main():
        (tmp_path / "old").mkdir()
        (tmp_path / "restored").mkdir()
        async with open_host(tmp_path / "old") as host:
            await host.publish(0)
            later = [(await host.publish(version)) and host.driver.of(Publish)[-1].manifest for version in (1, 2)]
        async with open_host(tmp_path / "restored") as host:
            await host.publish(0)
            assert not host.desk.is_foreign(host.driver.of(Publish)[0].manifest)
            assert [host.desk.is_foreign(manifest) for manifest in later] == [True, True]
            await host.ledger.commit([FloorSeen(Generation(2), later[-1].header.seq)])
            assert await host.ledger.reserve_seq(Version(3)) == later[-1].header.seq + 1

    trio.run(main)


def test_deltas_since_the_newest_snapshot_are_counted_over_restarts_and_a_chain_too_long_is_refused(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(desk, "MAX_CHAIN", 3)

    async def main():
        async with open_host(tmp_path) as host:
            for version in range(3):
                await host.publish(version)
            assert host.desk.deltas == 2
        async with open_host(tmp_path) as host:
            assert host.desk.deltas == 2
            await host.publish(3)
            with pytest.raises(StaleError, match="3 deltas follow") as refused:
                await host.publish(4)
            assert "snapshot" in refused.value.hint
            assert not host.desk.busy
            whole = {"kind": "snapshot", "base_version": NO_BASE, "base_digest": b""}
            await host.publish(4, **whole)
            assert host.desk.deltas == 0
            await host.publish(5)
            assert host.desk.deltas == 1

    trio.run(main)


def test_the_longest_chain_and_the_young_before_it_are_fewer_than_a_member_can_know():
    assert MAX_DELTAS < desk.MAX_CHAIN
    assert desk.MAX_CHAIN + RETAIN_MOST < MAX_KNOWN
