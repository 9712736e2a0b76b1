"""Swarms in which a quarter misbehaves, in each way alone: the others complete, and what it costs is bounded.

Bounds count segments and bans; times are simulated seconds.
"""

from __future__ import annotations

import pytest

from aurora_p2p.testing.adversaries import (
    Corrupter,
    HaveLiar,
    Selective,
    Slow,
    SlyCorrupter,
    Staller,
    Sybil,
    equivocate,
)
from aurora_p2p.testing.network import Network
from aurora_p2p.testing.node import Node, NodeSpec
from aurora_p2p.testing.topology import Topology
from aurora_p2p.types import ArtifactId

RATE = 1_000_000.0
SEGMENT = 16 * 1024
SEGMENTS = 48
SIZE = SEGMENTS * SEGMENT - 100
HONEST, BAD = 6, 2
BOUND = SIZE / RATE
KINDS = [Corrupter, SlyCorrupter, Staller, Slow, Selective, HaveLiar, Sybil]
PROMPT_SECONDS = 4 * BOUND
"""An adversary is waited for once, for MIN_SILENCE or three times what others take; what it alone has crosses again, or
leaves the origin again after its watch."""
SYBIL_SECONDS = 8 * BOUND
"""They vouch for each other towards the origin too: each is found out one after the other."""
COPIES = dict.fromkeys(KINDS, 1.25) | {Sybil: 3.0}
"""What leaves the origin, of the artifact: once, and again what the two Sybils vouched for in turn."""
WITHIN = dict.fromkeys(KINDS, PROMPT_SECONDS) | {Sybil: SYBIL_SECONDS}
FAR = Topology(rtts={(0, 1): 0.1, (1, 0): 0.1}, lanes=8)


def swarm(kind: type[Node], *, seed: int, topology: Topology = Topology()) -> tuple[Network, list[Node], list[Node]]:  # noqa: B008 (frozen)
    """Two of the kind, then six honest ones, all linked and in one roster; regions in turn where there are two."""
    regions = 2 if topology.rtts else 1
    specs = [NodeSpec(RATE, RATE, 0.01, index % regions) for index in range(BAD + HONEST)]
    network = Network(seed, NodeSpec(RATE, RATE, 0.01), topology, mesh=False)
    bad = [network.add(spec, kind) for spec in specs[:BAD]]
    honest = [network.add(spec) for spec in specs[BAD:]]
    network.enrol()
    network.run(1.0)
    return network, bad, honest


def finish(network: Network, honest: list[Node], artifact: ArtifactId, *, within: float) -> None:
    start = network.now
    network.run(start + within, lambda: all(artifact in node.done for node in honest))
    assert [node.peer for node in honest if artifact not in node.done] == []
    for node in honest:
        assert node.store[artifact] == network.host.store[artifact]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_quarter_that_misbehaves_stops_nobody_and_costs_a_bounded_number_of_segments(
    kind: type[Node], seed: int
) -> None:
    network, bad, honest = swarm(kind, seed=seed)
    finish(network, honest, network.publish(SIZE, SEGMENT), within=WITHIN[kind])
    wasted = sum(node.counts.wasted for node in honest)
    assert wasted <= 0.25 * HONEST * SEGMENTS, "discarded, of all that had to arrive"
    assert network.host.counts.sent_bytes <= COPIES[kind] * SIZE
    culprits = {node.peer for node in bad}
    assert all(set(node.counts.banned) <= culprits for node in [network.host, *honest])


@pytest.mark.parametrize("kind", KINDS)
def test_across_regions_a_quarter_that_misbehaves_stops_nobody_either(kind: type[Node]) -> None:
    network, bad, honest = swarm(kind, seed=4, topology=FAR)
    finish(network, honest, network.publish(SIZE, SEGMENT), within=WITHIN[kind])
    assert all(set(node.counts.banned) <= {node.peer for node in bad} for node in honest)


@pytest.mark.parametrize("kind", [Corrupter, SlyCorrupter])
def test_each_honest_node_takes_at_most_one_bad_segment_of_each_corrupter_and_bans_it(kind: type[Node]) -> None:
    network, bad, honest = swarm(kind, seed=5)
    finish(network, honest, network.publish(SIZE, SEGMENT), within=PROMPT_SECONDS)
    for node in honest:
        assert node.counts.bad <= len(bad) * 2, "what was on its way when the first arrived may still come"
        assert len(node.counts.banned) == len(set(node.counts.banned))
    assert any(node.counts.banned for node in honest)


def test_the_next_artifact_costs_less_once_corrupters_are_banned() -> None:
    network, _, honest = swarm(Corrupter, seed=6)
    finish(network, honest, network.publish(SIZE, SEGMENT, seq=1), within=PROMPT_SECONDS)
    first = sum(node.counts.bad for node in honest)
    finish(network, honest, network.publish(SIZE, SEGMENT, seq=2), within=PROMPT_SECONDS)
    again = sum(node.counts.bad for node in honest) - first
    assert again <= first


@pytest.mark.parametrize("kind", [Staller, Slow, Selective])
def test_who_did_not_deliver_is_remembered_by_the_next_artifact_which_does_not_wait_for_it_again(
    kind: type[Node],
) -> None:
    network, _, honest = swarm(kind, seed=9, topology=FAR)
    finish(network, honest, network.publish(SIZE, SEGMENT, seq=1), within=PROMPT_SECONDS)
    network.at(network.now + 1.0, lambda: None)
    network.run(network.now + 1.0)
    finish(network, honest, network.publish(SIZE, SEGMENT, seq=2), within=3 * BOUND)


def test_colluding_peers_that_vouch_for_each_other_cannot_make_the_origin_keep_a_segment_back() -> None:
    network, sybils, honest = swarm(Sybil, seed=7)
    artifact = network.publish(SIZE, SEGMENT)
    finish(network, honest, artifact, within=SYBIL_SECONDS)
    assert all(node.counts.sent == 0 for node in sybils)


def test_an_equivocating_publisher_halts_every_node_with_the_proof_and_nothing_completes() -> None:
    network, _, honest = swarm(Node, seed=8)
    artifact = equivocate(network, SIZE, SEGMENT, seq=1)
    network.run(network.now + 4 * BOUND)
    assert all(node.counts.equivocated == 1 for node in honest)
    assert all(artifact not in node.done for node in honest)
