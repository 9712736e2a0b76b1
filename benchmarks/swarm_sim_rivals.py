"""The policies that benchmarks.swarm_sim compares: what every node runs, and which links there are.

    ours        the Exchange, links by swarm/neighbours.py
    ours_warm   the same where connections keep their windows in a pause (BBR, or tcp_slow_start_after_idle = 0) and
                have grown them before: every window starts at its limit. All others start with ten packets
    direct      the origin sends every segment to every node, to all at once
    relay       the origin sends every segment to one relay per region, and each relay sends it on to every node of its
                region as soon as it has it; the relay is the fastest honest node that can be dialled. As everywhere, a
                link across regions has LANES connections (swarm_sim_scenarios.py)
    bittorrent  swarm_sim_torrent.py
    superseed   swarm_sim_torrent.py

Nothing replaces a relay that is gone: its region then never completes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aurora_p2p.swarm.exchange import Exchange
from aurora_p2p.testing.network import Network
from aurora_p2p.testing.node import MachineFactory, Node
from benchmarks.swarm_sim_sharer import Forwarder
from benchmarks.swarm_sim_torrent import SuperSeed, Torrent

TORRENT_DIALS = 12
"""Each dials as many and is dialled by as many, the origin like others: the 24 links that we have in a region."""


@dataclass(frozen=True, slots=True)
class Policy:
    """machine: what every node runs. wire: opens the links before the first artifact."""

    machine: MachineFactory
    wire: Callable[[Network], None]
    slow_start: bool = True


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


POLICIES = {
    "ours": Policy(Exchange, Network.enrol),
    "ours_warm": Policy(Exchange, Network.enrol, slow_start=False),
    "direct": Policy(Forwarder, wire_direct),
    "relay": Policy(Forwarder, wire_relay),
    "bittorrent": Policy(Torrent, wire_torrent),
    "superseed": Policy(SuperSeed, Network.enrol),
}
