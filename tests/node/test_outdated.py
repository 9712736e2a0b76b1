"""Artifacts that were in flight while a node was away, and that it needs no more: they must not be waited for."""

from __future__ import annotations

from tests.node.weights_world import run


def test_what_leads_no_further_than_the_weights_held_is_given_up_and_nothing_else(tmp_path) -> None:
    async def use(node, swarm):
        first = swarm.snapshot(0)
        missed = swarm.delta(1, first)
        lost = swarm.delta(2, missed)
        await node.receive(first)
        await node.announce(missed, lost)
        assert node.accepted == [first.artifact, missed.artifact, lost.artifact]
        assert node.weights.outdated() == []
        newer = swarm.snapshot(3)
        flying = swarm.delta(4, newer)
        await node.receive(newer)
        await node.announce(flying)
        assert await node.weights.commit_ready() is not None
        assert node.weights.held.version == 3
        assert set(node.weights.outdated()) == {missed.artifact, lost.artifact}
        assert node.weights.outdated() == []
        await node.complete(flying)
        assert (await node.weights.commit_ready()).version == 4

    run(tmp_path, use)
