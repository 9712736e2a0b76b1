"""The simulated network as a whole: repeatable runs, membership, NAT, regions, tokens instead of bytes."""

from __future__ import annotations

from aurora_p2p.testing.network import Network
from aurora_p2p.testing.node import Node, NodeSpec
from aurora_p2p.testing.topology import Topology
from aurora_p2p.types import ArtifactId

RATE = 1_000_000.0
SEGMENT = 16 * 1024
SIZE = 32 * SEGMENT - 100
FAR = Topology(rtts={(0, 1): 0.1, (1, 0): 0.1}, lanes=8)


def swarm(count: int, *, seed: int = 1, exact: bool = True, nat: int = 0, topology: Topology = FAR) -> Network:
    """Nodes in two regions by turns, the first `nat` of them behind NAT."""
    network = Network(seed, NodeSpec(RATE, RATE, 0.01), topology, exact=exact, mesh=False)
    for index in range(count):
        network.add(NodeSpec(RATE, RATE, 0.01, index % 2, nat=index < nat))
    network.enrol()
    network.run(1.0)
    return network


def nodes_of(network: Network) -> list[Node]:
    return [node for node in network.nodes.values() if node is not network.host]


def times(network: Network, artifact: ArtifactId) -> list[float]:
    nodes = nodes_of(network)
    network.run(network.now + 60, lambda: all(artifact in node.done for node in nodes))
    return [node.done[artifact] for node in nodes]


def test_the_same_seed_gives_the_same_run_and_tokens_give_the_run_of_real_bytes() -> None:
    runs = []
    for exact in (True, True, False):
        network = swarm(6, exact=exact)
        runs.append(times(network, network.publish(SIZE, SEGMENT)))
    assert runs[0] == runs[1] == runs[2]


def test_every_node_is_linked_to_the_host_and_knows_its_region_from_the_roster() -> None:
    network = swarm(6)
    view = network.membership.view
    assert view is not None
    for node in nodes_of(network):
        assert network.host.peer in node.links
        assert view.peers[node.peer].region == node.spec.region


def test_two_nodes_behind_nat_have_no_link_and_still_complete_through_others() -> None:
    network = swarm(6, nat=3)
    hidden = [node for node in nodes_of(network) if node.spec.nat]
    assert all(other.peer not in node.links for node in hidden for other in hidden)
    times(network, network.publish(SIZE, SEGMENT))


def test_a_large_swarm_is_no_mesh() -> None:
    network = Network(1, NodeSpec(RATE, RATE, 0.01), mesh=False)
    for _ in range(80):
        network.add(NodeSpec(RATE, RATE, 0.01))
    network.enrol()
    network.run(1.0)
    degrees = sorted(len(node.links) for node in nodes_of(network))
    assert degrees[0] >= 12
    assert degrees[-1] <= 48


def test_a_newcomer_is_in_the_next_roster_and_a_dead_node_is_not() -> None:
    network = swarm(4)
    first, *others = nodes_of(network)
    network.kill(first)
    late = network.add(NodeSpec(RATE, RATE, 0.01, 1))
    network.enrol()
    network.run(2.0)
    view = network.membership.view
    assert view is not None
    assert late.peer in view
    assert first.peer not in view
    assert all(late.peer in node.links for node in others)
    times_of_the_living(network, [*others, late])


def times_of_the_living(network: Network, nodes: list[Node]) -> None:
    artifact = network.publish(SIZE, SEGMENT)
    network.run(network.now + 60, lambda: all(artifact in node.done for node in nodes))
    assert all(artifact in node.done for node in nodes)


def test_a_cut_between_regions_bounds_what_crosses_it() -> None:
    narrow = Topology(rtts=FAR.rtts, lanes=8, cuts={(0, 1): RATE / 4})
    network = swarm(4, topology=narrow)
    start = network.now
    far = [node for node in nodes_of(network) if node.spec.region == 1]
    artifact = network.publish(SIZE, SEGMENT)
    times(network, artifact)
    assert min(node.done[artifact] for node in far) - start >= SIZE / (RATE / 4)
