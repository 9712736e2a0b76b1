"""Which artifacts a node wants, stages and commits, with a real store and an engine that does what it is told."""

import pytest
import trio
import trio.testing

from aurora_p2p.artifact.manifest import manifest_hash_of
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.errors import CheckpointError, ChildError, DigestMismatch, WireError
from aurora_p2p.types import StateDigest
from tests.node.weights_world import Node, checkpoint_of, run, staging
from tests.node.world import DEAD, ScriptedEngine, Swarm

settled = trio.testing.wait_all_tasks_blocked


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
