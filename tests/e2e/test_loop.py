"""The loop with real processes: versions out, samples in, newcomers."""

from __future__ import annotations

import pytest

from aurora_p2p.host.programs import wait_until
from tests.e2e.world import GROUP, LONG, PROMPTS, Swarm, grown

pytestmark = pytest.mark.slow

STEPS = 5


def is_seeded(swarm: Swarm) -> bool:
    """Whether the host has nothing left to fold, and a node holds its newest snapshot."""
    status = swarm.host.status()
    if status["folds"]["settled"] != status["version"] or status["folds"]["making"]:
        return False
    snapshots = [one for one in status["exchange"]["artifacts"] if one["kind"] == "snapshot"]
    newest = max(snapshots, key=lambda one: one["seq"])["artifact"]
    shown = [one for node in swarm.nodes for one in node.status()["exchange"]["artifacts"]]
    return any(one["artifact"] == newest and 0 < one["segments"] == one["have"] for one in shown)


def test_nodes_that_joined_by_ticket_and_by_swarm_id_follow_every_version_and_their_samples_are_admitted_once(
    swarm: Swarm,
) -> None:
    swarm.train(1)  # every node's speed is known
    before, host_before = swarm.settle(), swarm.host.status()
    records = swarm.train(STEPS)
    after, host_after = swarm.settle(), swarm.host.status()

    assert all(record.max_lag <= 1 for record in records)
    assert {record.publication.kind for record in records} == {"delta"}
    assert swarm.in_ledger(records[-1].step) == PROMPTS * GROUP
    admitted = [grown(old, new, "admitted") for old, new in zip(before, after, strict=True)]
    assert sum(admitted) == STEPS * PROMPTS * GROUP
    assert all(count > 0 for count in admitted), "every node worked"
    assert all(grown(old, new, "commits") > 0 for old, new in zip(before, after, strict=True))
    served = [grown(old, new, "exchange", "segments", "sent") for old, new in zip(before, after, strict=True)]
    assert all(count > 0 for count in served), "every node passed segments on"
    bytes_of = [
        grown(host_before, host_after, "exchange", "published", key) for key in ("sent_bytes", "artifact_bytes")
    ]
    assert bytes_of[1] == sum(record.publication.bytes for record in records)
    assert bytes_of[0] / bytes_of[1] <= 1.3


def test_a_late_joiner_catches_up_by_the_newest_snapshot_and_what_follows_it_and_works(swarm: Swarm) -> None:
    swarm.train(2)
    wait_until(lambda: is_seeded(swarm), LONG, "members that have rebuilt the host's newest snapshot")
    with swarm.guest("late") as late:
        (status,) = swarm.settle(late)
        segments, artifacts = status["exchange"]["segments"], status["exchange"]["artifacts"]
        assert segments["peers"] > segments["origin"], "it comes from members"
        assert all(one["from_peers"] > one["from_origin"] for one in artifacts if one["have"] > one["segments"] // 2)
        held = sorted((artifact["version"], artifact["kind"]) for artifact in artifacts if artifact["have"])
        assert held[0][1] == "snapshot"
        assert {kind for _, kind in held[1:]} <= {"delta"}
        swarm.train(2)
        wait_until(lambda: late.status()["admitted"] > 0, LONG, "a sample of the late joiner")
        assert late.stop() == 0
