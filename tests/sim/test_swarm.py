"""The exchange machines in the simulated network. Times are simulated seconds; bounds are those of swarm.md."""

import pytest

from aurora_p2p.testing.adversaries import Corrupter, HaveLiar, Staller
from aurora_p2p.testing.network import Network
from aurora_p2p.testing.node import Node, NodeSpec
from aurora_p2p.types import ArtifactId

RATE = 100_000.0
SPEC = NodeSpec(RATE, RATE, 0.01)
SEGMENT = 1024
SEGMENTS = 64
SIZE = SEGMENTS * SEGMENT - 100


def swarm(kinds: list[type[Node]], *, seed: int = 1) -> tuple[Network, list[Node]]:
    network = Network(seed, SPEC)
    nodes = [network.add(SPEC, kind) for kind in kinds]
    network.run(0.5)
    return network, nodes


def finish(network: Network, nodes: list[Node], artifact: ArtifactId, *, within: float) -> None:
    """Run until all hold the artifact, bit for bit; fail when that takes `within` times the bound."""
    bound = max(SIZE / RATE, len(nodes) * SIZE / ((len(nodes) + 1) * RATE))
    start = network.now
    network.run(start + within * bound, lambda: all(artifact in node.done for node in nodes))
    assert [node.peer for node in nodes if artifact not in node.done] == []
    for node in nodes:
        assert node.store[artifact] == network.host.store[artifact]


def copies(network: Network) -> float:
    return network.host.counts.sent_bytes / SIZE


@pytest.mark.parametrize(("count", "within"), [(3, 1.5), (8, 2.2)])
def test_a_clean_swarm_completes_from_one_origin_copy_and_every_node_serves(count: int, within: float) -> None:
    """Of eight nodes' bytes more than a quarter are control frames: segments are as small as that here."""
    network, nodes = swarm([Node] * count)
    finish(network, nodes, network.publish(SIZE, SEGMENT), within=within)
    assert copies(network) <= 1.1
    assert all(node.counts.sent >= SEGMENTS // 4 for node in nodes)
    assert sum(node.counts.duplicates for node in nodes) <= 0.02 * count * SEGMENTS


def test_segments_travel_on_while_later_ones_are_still_produced() -> None:
    network, nodes = swarm([Node] * 3)
    artifact = network.publish(SIZE, SEGMENT, seconds=2.0)
    network.run(network.now + 1.9)
    assert all(len(node.store[artifact]) >= SEGMENTS // 2 for node in nodes)
    assert not any(artifact in node.done for node in nodes)
    finish(network, nodes, artifact, within=1.0)
    assert copies(network) <= 1.1


@pytest.mark.parametrize("count", [1, 2])
def test_swarms_too_small_for_a_third_party_complete_from_one_copy(count: int) -> None:
    network, nodes = swarm([Node] * count)
    finish(network, nodes, network.publish(SIZE, SEGMENT), within=1.5)
    assert copies(network) == pytest.approx(1.0)


def test_the_same_seed_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        network, nodes = swarm([Node] * 4, seed=7)
        artifact = network.publish(SIZE, SEGMENT)
        finish(network, nodes, artifact, within=3.0)
        runs.append([(node.done[artifact], node.counts.sent) for node in nodes])
    assert runs[0] == runs[1]


def test_a_corrupter_is_banned_by_its_victims_and_nobody_else_is_banned() -> None:
    network, nodes = swarm([Corrupter, Node, Node, Node])
    bad, honest = nodes[0], nodes[1:]
    finish(network, honest, network.publish(SIZE, SEGMENT), within=4.0)
    assert all(set(node.counts.banned) <= {bad.peer} for node in [network.host, *honest])
    assert any(node.counts.banned for node in honest)
    assert network.host.counts.banned == []


def test_a_staller_delays_and_is_banned_by_nobody() -> None:
    network, nodes = swarm([Staller, Node, Node, Node])
    finish(network, nodes[1:], network.publish(SIZE, SEGMENT), within=5.0)
    assert all(node.counts.banned == [] for node in nodes)
    assert copies(network) <= 1.5


def test_a_peer_that_claims_everything_does_not_keep_the_origin_from_sending() -> None:
    network, nodes = swarm([HaveLiar, Node, Node, Node])
    finish(network, nodes[1:], network.publish(SIZE, SEGMENT), within=5.0)
    assert copies(network) <= 1.2


def test_a_third_of_the_swarm_misbehaves_in_every_way_and_the_rest_completes() -> None:
    network, nodes = swarm([HaveLiar, Staller, Corrupter, *[Node] * 6])
    finish(network, nodes[3:], network.publish(SIZE, SEGMENT), within=10.0)


@pytest.mark.parametrize("noticed_after", [0.0, 2.0])
def test_a_first_holder_that_dies_is_replaced(noticed_after: float) -> None:
    network, nodes = swarm([Node] * 4)
    artifact = network.publish(SIZE, SEGMENT)
    network.run(network.now + 0.2)
    network.kill(nodes[0], noticed_after=noticed_after)
    finish(network, nodes[1:], artifact, within=4.0)
    assert copies(network) <= 1.3


def test_the_origin_dies_when_one_copy_is_out_and_the_nodes_complete_among_themselves() -> None:
    network, nodes = swarm([Node] * 3)
    artifact = network.publish(SIZE, SEGMENT)
    network.run(network.now + 60, lambda: len({i for node in nodes for i in node.store.get(artifact, ())}) == SEGMENTS)
    assert not any(artifact in node.done for node in nodes)
    network.kill(network.host)
    finish(network, nodes, artifact, within=2.0)


def test_a_late_joiner_is_served_by_the_nodes_and_not_by_the_origin() -> None:
    network, nodes = swarm([Node] * 2)
    artifact = network.publish(SIZE, SEGMENT)
    finish(network, nodes, artifact, within=2.0)
    late = network.add(SPEC)
    finish(network, [late], artifact, within=2.0)
    assert copies(network) == pytest.approx(1.0)
    assert min(node.counts.sent for node in nodes) >= SEGMENTS // 2


def test_a_joiner_whom_no_node_can_serve_is_served_by_the_origin() -> None:
    network, nodes = swarm([Node])
    artifact = network.publish(SIZE, SEGMENT)
    finish(network, nodes, artifact, within=2.0)
    network.kill(nodes[0])
    finish(network, [network.add(SPEC)], artifact, within=2.0)
    assert copies(network) == pytest.approx(2.0)


def test_an_artifact_published_before_anybody_joined_reaches_the_first_ones() -> None:
    network, _ = swarm([])
    artifact = network.publish(SIZE, SEGMENT)
    network.run(5.0)
    nodes = [network.add(SPEC) for _ in range(3)]
    finish(network, nodes, artifact, within=2.0)
    assert copies(network) <= 1.1


def test_an_empty_delta_completes_without_a_segment() -> None:
    network, nodes = swarm([Node] * 2)
    artifact = network.publish(0, SEGMENT)
    network.run(network.now + 1)
    assert all(artifact in node.done for node in nodes)


def test_two_artifacts_in_flight_both_complete_and_in_order() -> None:
    network, nodes = swarm([Node] * 3)
    first, second = network.publish(SIZE, SEGMENT, seq=1), network.publish(SIZE, SEGMENT, seq=2)
    finish(network, nodes, second, within=4.0)
    assert all(node.done[first] <= node.done[second] for node in nodes)


def test_a_lost_link_between_two_nodes_is_made_up_for_by_the_third() -> None:
    network, nodes = swarm([Node] * 3)
    artifact = network.publish(SIZE, SEGMENT)
    network.run(network.now + 0.2)
    network.cut(nodes[0].peer, nodes[1].peer)
    finish(network, nodes, artifact, within=4.0)
