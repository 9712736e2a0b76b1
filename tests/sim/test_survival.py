"""What a swarm comes through: rosters that half has not seen, the loss of every peer, an origin over an ocean."""

from __future__ import annotations

import pytest

from aurora_p2p.swarm import events as ev
from aurora_p2p.testing.network import Network
from aurora_p2p.testing.node import Node, NodeSpec
from aurora_p2p.testing.topology import Topology
from aurora_p2p.types import ArtifactId

RATE = 1_000_000.0
SEGMENT = 16 * 1024
SEGMENTS = 64
SIZE = SEGMENTS * SEGMENT - 100
BOUND = SIZE / RATE
FAR = Topology(rtts={(0, 1): 0.1, (1, 0): 0.1}, lanes=8)


def spec(region: int = 0) -> NodeSpec:
    return NodeSpec(RATE, RATE, 0.01, region)


def swarm(regions: list[int], *, seed: int = 1, mesh: bool = False) -> tuple[Network, list[Node]]:
    network = Network(seed, spec(), FAR, mesh=mesh)
    nodes = [network.add(spec(region)) for region in regions]
    if not mesh:
        network.enrol()
    network.run(1.0)
    return network, nodes


def finish(network: Network, nodes: list[Node], artifact: ArtifactId, *, within: float) -> None:
    start = network.now
    network.run(start + within * BOUND, lambda: all(artifact in node.done for node in nodes))
    assert [node.peer for node in nodes if artifact not in node.done] == []
    assert all(node.store[artifact] == network.host.store[artifact] for node in nodes)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_swarm_of_which_half_has_the_next_epoch_completes_with_the_member_that_only_it_names(seed: int) -> None:
    network, nodes = swarm([0, 1, 0, 1, 0, 1], seed=seed)
    newcomer = network.add(spec(1))
    ahead = [network.host, newcomer, *nodes[:3]]
    roster = network.membership.seal([network.host, *nodes, newcomer])
    for node in ahead:
        node.feed(ev.RosterChanged(roster))
    for node in (network.host, *nodes[:3]):
        network.link(newcomer, node)
    artifact = network.publish(SIZE, SEGMENT)
    finish(network, [*nodes, newcomer], artifact, within=5)
    assert not any(node.counts.banned for node in [network.host, *nodes, newcomer])


def test_when_every_peer_dies_in_mid_transfer_those_who_come_after_complete() -> None:
    network, nodes = swarm([0, 0, 0], mesh=True)
    artifact = network.publish(SIZE, SEGMENT)
    network.run(network.now + 0.5 * BOUND)
    for node in nodes:
        assert node.store[artifact]
        assert artifact not in node.done
        network.kill(node, noticed_after=1.0)
    finish(network, [network.add(spec()) for _ in range(3)], artifact, within=5)
    assert network.host.counts.sent_bytes <= 2.1 * SIZE, "what the dead took with them leaves once more"


@pytest.mark.parametrize("count", [1, 3])
def test_an_origin_feeds_a_region_across_an_ocean_and_each_segment_leaves_once(count: int) -> None:
    network, nodes = swarm([1] * count)
    artifact = network.publish(SIZE, SEGMENT)
    finish(network, nodes, artifact, within=4)
    assert network.host.counts.sent_bytes == pytest.approx(SIZE, rel=0.05)
