"""The policies that benchmarks.swarm_sim compares: what every node runs, and which links there are.

    ours        the Exchange, links by swarm/neighbours.py
    direct      the origin sends every segment to every node, to all at once
    relay       the origin sends every segment to one relay per region, and each relay sends it on to every node of its
                region as soon as it has it; the relay is the fastest honest node that can be dialled
    bittorrent  swarm_sim_torrent.py
    superseed   swarm_sim_torrent.py

The first three have LANES connections on a link across regions (swarm_sim_scenarios.py). The last two have one, as
BitTorrent clients do: with the few pieces that they have outstanding at a peer, eight connections stay cold, and
superseed then takes more than twice as long.


Nothing replaces a relay that is gone: its region then never completes.

Windows. Artifacts are seconds to minutes apart, and a connection is idle between them. By a plain name all connections
start with ten packets, as with Linux' defaults: CUBIC halves a window for each time-out of idleness
(net.ipv4.tcp_slow_start_after_idle = 1), so that after some seconds nothing is left of it. `NAME_warm` is the same
policy where a pause costs nothing (BBR, which the kernel exempts, or that setting at 0) and windows have grown before:
each starts at its limit, which is the most that can be hoped for. Neither the data plane (net/kernel.py) nor a process
without privileges chooses BBR on a stock kernel, so the plain names are the figures to quote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from aurora_p2p.swarm.exchange import Exchange
from aurora_p2p.testing.network import Network
from aurora_p2p.testing.node import MachineFactory, Node
from benchmarks.swarm_sim_scenarios import LANES
from benchmarks.swarm_sim_sharer import Forwarder
from benchmarks.swarm_sim_torrent import SuperSeed, Torrent

TORRENT_DIALS = 12
"""Each dials as many and is dialled by as many, the origin like others: the 24 links that we have in a region."""


@dataclass(frozen=True, slots=True)
class Policy:
    """machine: what every node runs. wire: opens the links before the first artifact. The rest is in Topology."""

    machine: MachineFactory
    wire: Callable[[Network], None]
    slow_start: bool = True
    lanes: int = LANES


def wire_direct(network: Network) -> None:
    _serve(network, network.host, [node for node in network.nodes.values() if node is not network.host])


def wire_relay(network: Network) -> None:
    by_region: dict[int, list[Node]] = {}
    for node in network.nodes.values():
        if node is not network.host:
            by_region.setdefault(node.spec.region, []).append(node)
    for members in by_region.values():
        able = [node for node in members if type(node) is Node and not node.spec.nat]
        relay = max(able or members, key=lambda node: node.spec.up)
        _serve(network, network.host, [relay])
        _serve(network, relay, [node for node in members if node is not relay])


def wire_torrent(network: Network) -> None:
    nodes = list(network.nodes.values())
    for node in nodes:
        others = [other for other in nodes if other is not node and not other.spec.nat]
        for other in network.rng.sample(others, min(TORRENT_DIALS, len(others))):
            network.link(node, other)


def _serve(network: Network, source: Node, targets: list[Node]) -> None:
    for target in targets:
        network.link(source, target)
        if isinstance(source.machine, Forwarder):
            source.machine.towards.add(target.peer)


COLD = {
    "ours": Policy(Exchange, Network.enrol),
    "direct": Policy(Forwarder, wire_direct),
    "relay": Policy(Forwarder, wire_relay),
    "bittorrent": Policy(Torrent, wire_torrent, lanes=1),
    "superseed": Policy(SuperSeed, Network.enrol, lanes=1),
}
POLICIES = COLD | {f"{name}_warm": replace(policy, slow_start=False) for name, policy in COLD.items()}
