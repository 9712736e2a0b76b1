"""A publication whose model is not what its manifest says: signed and delivered, and still never served."""

from __future__ import annotations

import msgspec
import pytest

from aurora_p2p.engine.model import checkpoint_bits
from aurora_p2p.host.programs import wait_until
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.train.publish import Publisher
from aurora_p2p.types import Version
from tests.e2e.world import LONG, TINY, Swarm, wait_until_serving

pytestmark = pytest.mark.slow


def test_a_model_that_does_not_match_its_manifest_is_never_served_and_the_next_good_one_is(swarm: Swarm) -> None:
    swarm.settle()
    good = swarm.host.status()["version"]
    wrong = msgspec.structs.replace(TINY, intermediate_size=2 * TINY.intermediate_size)
    specs, bits = checkpoint_bits(swarm.trainer.model)
    restarts = [node.status()["engine_restarts"] for node in swarm.nodes]
    with SwarmClient.open(swarm.host.home) as client:
        Publisher(client, wrong).publish(specs, bits, Version(good + 1), full=True)
        swarm.host.wait_for("commit-failed", LONG)
        for node, before in zip(swarm.nodes, restarts, strict=True):
            # The engine is rebuilt from the store once, refuses it again, and goes back to the version before.
            wait_until(lambda node=node, before=before: node.status()["engine_restarts"] > before, LONG, "a rebuild")
            wait_until_serving(node, good)
            wait_until(lambda node=node: node.status()["failures"] >= 2, LONG, "a second refusal")
        Publisher(client, TINY).publish(specs, bits, Version(good + 2), full=True)
    swarm.settle()
    swarm.train(2)
    swarm.settle()
