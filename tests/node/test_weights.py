"""Which artifacts a node wants, stages and commits, with a real store and an engine that does what it is told."""

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from aurora_node.weights import Weights
from aurora_p2p.artifact.chain import Checkpoint
from aurora_p2p.artifact.manifest import manifest_hash_of
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.errors import CheckpointError, ChildError, DigestMismatch, WireError
from aurora_p2p.types import StateDigest, Version
from tests.node.world import DEAD, ScriptedEngine, Swarm

settled = trio.testing.wait_all_tasks_blocked


def checkpoint_of(one):
    return Checkpoint(one.manifest.header.version, manifest_hash_of(one.final), one.manifest.final.digest)


class Node:
    """Weights with their store and engine; `accepted` is what the exchange was told to fetch."""

    def __init__(self, store, swarm, audit_every):
        self.store, self.swarm, self.accepted = store, swarm, []
        self.lacking, self.notes = "", []
        self.weights = Weights(store, self._accept, audit_every, lambda manifest: self.lacking, self._note)
        self.engine = ScriptedEngine()
        self.weights.attach(self.engine)

    def _note(self, name, **fields):
        self.notes.append((name, fields))

    async def _accept(self, artifact):
        self.accepted.append(artifact)

    async def announce(self, *all_):
        for one in all_:
            await self.weights.announced(one.manifest)

    async def receive(self, *all_):
        """Announced, fetched, complete, and whatever staging follows from it."""
        for one in all_:
            await self.announce(one)
            await self.complete(one)

    async def complete(self, one):
        """The rest of `receive` for what was announced before; no thread works meanwhile."""
        self.swarm.receive(one)
        await self.weights.completed(one.artifact)
        await settled()


def run(tmp_path, use, *, audit_every=16, quota_bytes=1 << 26, clock=None):
    """`use(node, swarm)` while the node stages in the background."""

    async def main():
        with ArtifactStore(tmp_path / "artifacts", quota_bytes) as store:
            swarm = Swarm(store, tmp_path / "spool")
            node = Node(store, swarm, audit_every)
            async with staging(node):
                await use(node, swarm)

    trio.run(main)


@asynccontextmanager
async def staging(node):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.weights.run, node.engine)
        yield
        nursery.cancel_scope.cancel()


@pytest.fixture
def clock(monkeypatch):
    """The boot clock of weights.py, set by hand."""
    now = [1000.0]
    monkeypatch.setattr("aurora_node.weights.boottime", lambda: now[0])
    return now


def test_the_first_snapshot_is_loaded_and_the_deltas_after_it_staged_and_committed(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        second = swarm.delta(1, first)
        third = swarm.delta(2, second)
        await node.receive(first)
        assert node.weights.held == checkpoint_of(first)
        assert await node.weights.commit_ready() == checkpoint_of(first)
        await node.receive(second, third)
        assert node.weights.held == checkpoint_of(first)  # staged beside what is served
        assert node.weights.newest == 2
        assert await node.weights.commit_ready() == checkpoint_of(third)
        assert node.engine.calls == [("load", 0), ("stage", 1), ("stage", 2), ("commit", 2, True)]
        assert (node.weights.figures.commits, node.weights.figures.changed_elements) == (1, 8)
        assert node.weights.figures.stage_seconds == 1.0
        assert node.weights.figures.commit_seconds == 0.125
        assert await node.weights.commit_ready() == checkpoint_of(third)
        assert len(node.engine.calls) == 4

    run(tmp_path, use)


def test_nothing_is_served_before_the_first_snapshot_and_a_lone_delta_is_not_wanted(tmp_path):
    async def use(node, swarm):
        delta = swarm.delta(1, swarm.snapshot(0))
        await node.announce(delta)
        assert node.accepted == []
        assert await node.weights.commit_ready() is None
        assert node.weights.newest == -1

    run(tmp_path, use)


def test_disk_is_reserved_before_an_artifact_is_accepted_and_each_is_accepted_once(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.announce(first, first)
        await node.announce(swarm.delta(1, first))
        assert node.accepted == [one.artifact for one in swarm.published]
        assert all(node.store.body_path(artifact).exists() for artifact in node.accepted)

    run(tmp_path, use)


def test_without_room_nothing_is_accepted_and_the_owner_is_told(tmp_path):
    async def use(node, swarm):
        await node.announce(swarm.snapshot(0))
        assert node.accepted == []
        assert "does not fit" in node.weights.problem

    run(tmp_path, use, quota_bytes=1000)


def test_what_has_no_room_is_accepted_as_soon_as_there_is_room_without_a_new_announcement(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        node.lacking = "0.1 GiB of disk are free"
        await node.announce(first)
        for _ in range(3):
            await node.weights.accept_wanted()
        assert (node.accepted, node.weights.problem) == ([], "0.1 GiB of disk are free")
        assert [fields["why"] for name, fields in node.notes if name == "no-room"] == ["0.1 GiB of disk are free"]
        node.lacking = ""
        await node.weights.accept_wanted()
        assert (node.accepted, node.weights.problem) == ([first.artifact], "")
        await node.complete(first)
        assert node.weights.held == checkpoint_of(first)

    run(tmp_path, use)


def test_quota_that_is_given_back_is_used_without_a_new_announcement(tmp_path):
    async def use(node, swarm):
        old, new = swarm.snapshot(0), swarm.snapshot(1)
        await node.announce(old)
        await node.announce(new)
        assert "does not fit" in node.weights.problem
        node.weights.forget(old.artifact)
        node.store.retire(old.artifact)
        await node.weights.accept_wanted()
        assert node.accepted == [old.artifact, new.artifact]
        assert node.weights.problem == ""

    run(tmp_path, use, quota_bytes=(1 << 20) + 1000)


def test_a_want_of_room_ends_with_what_had_none(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        node.lacking = "no memory"
        await node.announce(first)
        node.weights.forget(first.artifact)
        assert node.weights.problem == ""

    run(tmp_path, use)


def test_an_artifact_forgotten_while_room_is_made_leaves_nothing_on_disk(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        create = node.store.create

        def aborted_meanwhile(header):
            create(header)
            trio.from_thread.run_sync(node.weights.forget, first.artifact)

        node.store.create = aborted_meanwhile
        await node.announce(first)
        assert (node.accepted, node.store.reserved_bytes) == ([], 0)

    run(tmp_path, use)


def test_an_artifact_is_accepted_once_also_when_two_look_for_room_at_a_time(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.announce, first)
            nursery.start_soon(node.weights.accept_wanted)
            nursery.start_soon(node.announce, first)
        assert node.accepted == [first.artifact]

    run(tmp_path, use)


def test_without_an_engine_nothing_is_held_and_fetching_goes_on_for_the_next(tmp_path):
    async def main():
        with ArtifactStore(tmp_path / "artifacts", 1 << 26) as store:
            swarm = Swarm(store, tmp_path / "spool")
            node = Node(store, swarm, 16)
            first = swarm.snapshot(0)
            async with staging(node):
                await node.receive(first)
            node.weights.detach()
            assert (node.weights.held, node.weights.newest) == (None, -1)
            second = swarm.delta(1, first)
            await node.announce(second)
            await node.complete(second)
            assert node.accepted == [first.artifact, second.artifact]
            node.engine = ScriptedEngine()
            node.weights.attach(node.engine)
            async with staging(node):
                await settled()
                assert await node.weights.commit_ready() == checkpoint_of(second)

    trio.run(main)


def test_a_delta_that_arrives_before_the_snapshot_waits_for_it(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        second = swarm.delta(1, first)
        await node.announce(first, second)
        swarm.receive(second)
        await node.weights.completed(second.artifact)
        await settled()
        assert node.engine.calls == []
        swarm.receive(first)
        await node.weights.completed(first.artifact)
        await settled()
        assert node.engine.calls == [("load", 0, 1)]  # both at once: no model is made of the first

    run(tmp_path, use)


def test_a_node_that_missed_a_version_catches_up_by_a_snapshot_and_what_follows_it(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        missed = swarm.delta(1, first)
        newer = swarm.snapshot(2)
        after = swarm.delta(3, newer)
        await node.receive(first)
        await node.receive(newer, after)
        assert missed.artifact not in node.accepted
        assert await node.weights.commit_ready() == checkpoint_of(after)
        assert node.engine.calls == [("load", 0), ("stage", 2), ("stage", 3), ("commit", 3, True)]

    run(tmp_path, use)


def test_a_delta_on_another_base_is_never_staged(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        foreign = swarm.delta(1, swarm.snapshot(0))  # the same version, other weights
        await node.receive(first)
        held = node.weights.held
        assert held == checkpoint_of(first)
        await node.announce(foreign)
        assert foreign.artifact not in node.accepted

    run(tmp_path, use)


def test_what_a_restarted_node_finds_on_disk_is_served_again(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        second = swarm.delta(1, first)
        for one in (first, second):
            node.store.create(one.header)
            swarm.receive(one)
        for manifest, _ in node.store.load(now=0.0):
            node.weights.restored(manifest, complete=True)
        await settled()
        assert await node.weights.commit_ready() == checkpoint_of(second)
        assert node.accepted == []

    run(tmp_path, use)


def test_every_so_many_commits_are_audited_and_a_load_always_is(tmp_path):
    async def use(node, swarm):
        last = swarm.snapshot(0)
        await node.receive(last)
        assert (node.weights.figures.audits, node.weights.audited) == (1, 0)
        for version in range(1, 8):
            last = swarm.delta(version, last)
            await node.receive(last)
            await node.weights.commit_ready()
        audits = [audit for name, *rest in node.engine.calls if name == "commit" for audit in rest[1:]]
        assert audits == [True, False, False, True, False, False, True]
        assert (node.weights.figures.audits, node.weights.audited) == (4, 7)

    run(tmp_path, use, audit_every=3)


@pytest.mark.parametrize("lie", [False, True])
def test_weights_that_are_not_what_was_named_are_counted_and_end_the_engine(lie, tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        second = swarm.delta(1, first)
        await node.receive(first, second)
        if lie:
            node.engine.lie = StateDigest(bytes(32))
        else:
            node.engine.fail["commit"] = DigestMismatch("the weights held are not those of version 1")
        with pytest.raises(DigestMismatch):
            await node.weights.commit_ready()
        assert node.weights.figures.audit_mismatches == 1
        assert node.weights.held == checkpoint_of(first)  # never reported as version 1

    run(tmp_path, use)


def test_a_new_engine_is_loaded_from_the_store_up_to_the_newest_version(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        second = swarm.delta(1, first)
        await node.receive(first, second)
        node.engine.fail["commit"] = DigestMismatch("bad memory")
        with pytest.raises(CheckpointError):
            await node.weights.commit_ready()
        fresh = ScriptedEngine()
        node.weights.attach(fresh)
        assert (node.weights.held, node.weights.newest) == (None, -1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.weights.run, fresh)
            await settled()
            assert await node.weights.commit_ready() == checkpoint_of(second)
            nursery.cancel_scope.cancel()
        assert fresh.calls == [("load", 0, 1)]
        assert node.weights.figures.pauses == []

    run(tmp_path, use)


@pytest.mark.parametrize("error", [CheckpointError("another layout"), WireError("a torn block"), DigestMismatch("no")])
def test_an_artifact_that_cannot_be_staged_is_set_aside_and_a_snapshot_takes_its_place(error, tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.receive(first)
        node.engine.fail["stage"] = error
        told = []
        node.weights.on_unusable = lambda manifest, why: told.append((manifest.header.version, why))
        bad = swarm.delta(1, first)
        await node.receive(bad)
        assert told == [(1, node.weights.problem)]
        assert node.weights.figures.failures == 1
        assert "version 1 cannot be used" in node.weights.problem
        assert node.weights.figures.audit_mismatches == isinstance(error, DigestMismatch)
        assert await node.weights.commit_ready() == checkpoint_of(first)
        healed = swarm.snapshot(1)
        await node.receive(healed)
        assert await node.weights.commit_ready() == checkpoint_of(healed)
        assert node.weights.problem == ""
        assert all(entry.pins == 0 for entry in node.store._entries.values())

    run(tmp_path, use)


def test_weights_in_doubt_end_the_run_for_its_owner_to_rebuild_from_the_store(tmp_path):
    async def use(node, swarm):
        await node.receive(swarm.snapshot(0))
        node.weights.rebase()
        with pytest.raises(CheckpointError):
            await node.weights.run(node.engine)
        fresh = ScriptedEngine()
        node.weights.attach(fresh)
        with trio.move_on_after(0.2):
            await node.weights.run(fresh)
        assert [call[:2] for call in fresh.calls] == [("load", 0)]

    async def main():
        with ArtifactStore(tmp_path / "artifacts", 1 << 26) as store:
            swarm = Swarm(store, tmp_path / "spool")
            await use(Node(store, swarm, 16), swarm)

    trio.run(main)


def test_an_engine_that_dies_while_staging_ends_the_run_for_its_owner_to_replace(tmp_path):
    async def main():
        with ArtifactStore(tmp_path / "artifacts", 1 << 26) as store:
            swarm = Swarm(store, tmp_path / "spool")
            node = Node(store, swarm, 16)
            node.engine.fail["load"] = DEAD
            await node.receive(swarm.snapshot(0))
            with pytest.raises(ChildError):
                await node.weights.run(node.engine)
            assert node.weights.held is None

    trio.run(main)


def test_what_is_staged_while_a_commit_runs_is_committed_before_the_next_lease(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        second = swarm.delta(1, first)
        third = swarm.delta(2, second)
        await node.receive(first, second)
        node.engine.hold["commit"] = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.weights.commit_ready)
            await settled()
            await node.receive(third)
            node.engine.hold.pop("commit").set()
        assert node.weights.held == checkpoint_of(third)
        assert [call[:2] for call in node.engine.calls[-2:]] == [("stage", 2), ("commit", 2)]

    run(tmp_path, use)


def test_completion_of_something_forgotten_meanwhile_is_no_news(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.announce(first)
        node.weights.forget(first.artifact)
        await node.weights.completed(first.artifact)
        node.weights.forget(first.artifact)
        await settled()
        assert node.engine.calls == []

    run(tmp_path, use)


def test_whoever_waits_for_newer_weights_wakes_when_they_are_staged_or_the_time_is_up(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.receive(first)
        await node.weights.wait_for_newer(Version(-1), 600)  # there already
        await node.weights.wait_for_newer(Version(0), 0.0)
        woken = []

        async def wait():
            await node.weights.wait_for_newer(Version(0), 600)
            woken.append(node.weights.newest)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await settled()
            assert woken == []
            await node.receive(swarm.delta(1, first))
        assert woken == [1]

    run(tmp_path, use)


# ---- figures


def test_transfer_time_is_from_hearing_of_an_artifact_to_its_last_byte(tmp_path, clock):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.announce(first)
        clock[0] += 7.0
        swarm.receive(first)
        await node.weights.completed(first.artifact)
        clock[0] += 5.0
        await node.weights.completed(first.artifact)  # told twice: counted once
        assert node.weights.figures.transfer_seconds == 7.0

    run(tmp_path, use)


def test_waiting_is_idle_time_while_newer_weights_were_on_their_way(tmp_path, clock):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.receive(first)
        node.weights.idle()
        clock[0] += 10.0  # idle for want of prompts: nothing is under way
        second = swarm.delta(1, first)
        await node.announce(second)
        clock[0] += 3.0
        node.weights.idle()  # refused again: still the same idleness
        swarm.receive(second)
        await node.weights.completed(second.artifact)
        await settled()
        await node.weights.commit_ready()
        clock[0] += 2.0  # committed, but no lease yet: not the weights' fault
        node.weights.busy()
        assert node.weights.figures.waited_seconds == 3.0

    run(tmp_path, use)


def test_a_transfer_behind_a_running_generation_is_not_waited_for(tmp_path, clock):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.receive(first)
        node.weights.busy()
        second = swarm.delta(1, first)
        await node.announce(second)
        clock[0] += 4.0
        swarm.receive(second)
        await node.weights.completed(second.artifact)
        await settled()
        await node.weights.commit_ready()
        node.weights.busy()
        assert node.weights.figures.waited_seconds == 0.0
        assert node.weights.figures.transfer_seconds == 4.0

    run(tmp_path, use)


def test_waiting_counts_also_when_old_work_turns_up_before_the_new_weights(tmp_path, clock):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.receive(first)
        second = swarm.delta(1, first)
        await node.announce(second)
        clock[0] += 1.0
        node.weights.idle()
        clock[0] += 6.0
        node.weights.busy()  # a lease another node gave back
        clock[0] += 6.0
        assert node.weights.figures.waited_seconds == 6.0

    run(tmp_path, use)


def test_a_pause_is_from_the_last_token_of_one_version_to_the_first_of_the_next(tmp_path):
    async def use(node, swarm):
        weights = node.weights
        weights.tokens_at(1.0, 2.0, Version(0))
        weights.tokens_at(2.5, 3.0, Version(0))  # the same version: a pause of the swarm's work, not of a commit
        weights.tokens_at(3.25, 4.0, Version(1))
        weights.tokens_at(4.5, 5.0, Version(3))
        assert weights.figures.pauses == [0.25, 0.5]
        weights.attach(ScriptedEngine())
        weights.tokens_at(60.0, 61.0, Version(4))  # a new engine: loading is no commit
        assert weights.figures.pauses == [0.25, 0.5]

    run(tmp_path, use)


def test_pauses_are_remembered_up_to_a_bound(tmp_path):
    async def use(node, swarm):
        for version in range(2000):
            node.weights.tokens_at(version + 0.5, version + 1.0, Version(version))
        assert 100 < len(node.weights.figures.pauses) < 1000

    run(tmp_path, use)


def test_snapshots_that_were_passed_by_are_forgotten_but_for_the_newest(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        await node.receive(first)
        second = swarm.delta(1, first)
        await node.receive(second)
        await node.weights.commit_ready()
        old, newer, newest = swarm.snapshot(0), swarm.snapshot(1), swarm.snapshot(1)
        ahead = swarm.delta(2, second)
        await node.announce(old, newer, newest, ahead)
        assert node.weights.passed_by() == [old.artifact, newer.artifact]
        for artifact in node.weights.passed_by():
            node.weights.forget(artifact)
        assert node.weights.passed_by() == []
        assert ahead.artifact in node.accepted

    run(tmp_path, use)


def test_what_cannot_be_loaded_at_once_is_taken_one_by_one_so_that_the_one_at_fault_is_known(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        second, blamed = swarm.delta(1, first), []
        third = swarm.delta(2, second)
        node.weights.on_unusable = lambda manifest, why: blamed.append(manifest.artifact)
        await node.announce(first, second, third)
        for one in (third, second):
            await node.complete(one)
        node.engine.fail["load"], node.engine.fail["stage"] = WireError("a torn block"), WireError("a torn block")
        await node.complete(first)
        assert node.engine.calls == [("load", 0, 1, 2), ("load", 0), ("stage", 1)]
        assert blamed == [second.artifact]
        assert (node.weights.held, node.weights.newest) == (checkpoint_of(first), 0)
        assert [name for name, _ in node.notes] == ["load-failed", "committed"]
        assert all(entry.pins == 0 for entry in node.store._entries.values())

    run(tmp_path, use)


def test_a_squash_takes_the_place_of_what_is_still_to_be_fetched_and_nothing_is_fetched_twice(tmp_path):
    async def use(node, swarm):
        declined = []

        async def decline(artifact):
            declined.append(artifact)

        node.weights.decline = decline
        first = swarm.snapshot(0)
        await node.receive(first)
        chain = [swarm.delta(1, first)]
        for version in range(2, 6):
            chain.append(swarm.delta(version, chain[-1]))
        await node.announce(*chain)
        squash = swarm.squash(first, chain[-1])
        await node.announce(squash)
        assert node.accepted[-1] == squash.artifact
        assert declined == [one.artifact for one in chain]
        await node.complete(squash)
        assert await node.weights.commit_ready() == checkpoint_of(squash)
        assert node.engine.calls == [("load", 0), ("stage", 5), ("commit", 5, True)]
        assert set(node.weights.outdated()) == {one.artifact for one in chain}
        following = swarm.delta(6, chain[-1])  # it names the manifest of the delta: the digest is what joins
        await node.receive(following)
        assert (await node.weights.commit_ready()).version == 6

    run(tmp_path, use)


def test_what_is_nearly_here_is_not_given_up_for_a_squash(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        second = swarm.delta(1, first)
        third = swarm.delta(2, second)
        await node.receive(first, second)
        await node.announce(third)
        await node.announce(swarm.squash(first, third))
        assert node.accepted == [first.artifact, second.artifact, third.artifact]

    run(tmp_path, use)


def test_what_was_folded_here_is_loaded_and_named_by_the_publication_that_it_ends_at(tmp_path):
    async def use(node, swarm):
        first = swarm.snapshot(0)
        second = swarm.delta(1, first)
        third = swarm.delta(2, second)
        await node.receive(first, second, third)
        squash = swarm.squash(first, third, base_manifest=manifest_hash_of(third.final))
        node.store.create(squash.header)
        swarm.receive(squash)
        node.weights.restored(squash.manifest, complete=True, own=True)
        assert node.weights.own == {squash.artifact}
        fresh = ScriptedEngine()
        node.weights.attach(fresh)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.weights.run, fresh)
            await settled()
            nursery.cancel_scope.cancel()
        assert fresh.calls == [("load", 0, 2)]
        assert node.weights.held == checkpoint_of(third)

    run(tmp_path, use)


def test_a_short_quota_gives_up_what_only_others_may_need(tmp_path):
    async def use(node, swarm):
        retired = []

        async def note(artifact):
            retired.append(artifact)

        node.weights.retired = note
        old = swarm.snapshot(0)
        await node.receive(old)
        new = swarm.snapshot(3)
        await node.receive(new)
        await node.announce(swarm.delta(4, new))
        assert retired == [old.artifact]
        assert (node.weights.problem, len(node.accepted)) == ("", 3)

    run(tmp_path, use, quota_bytes=(1 << 20) + 1000)
