"""Churn in the simulated network: nodes come, go silently and lose links, and none that could go on stands still."""

from __future__ import annotations

from functools import partial

import pytest

from aurora_p2p.testing.adversaries import HaveLiar
from aurora_p2p.testing.network import Network
from aurora_p2p.testing.node import NodeSpec
from aurora_p2p.testing.watchdog import SegmentWatch
from aurora_p2p.types import ArtifactId

RATE = 40_000.0
SPEC = NodeSpec(RATE, RATE, 0.01)
SEGMENT = 1024
SIZE = 24 * SEGMENT - 100
LOOK = 0.25
BOUND = 4.0
"""Simulated seconds without an arrival: a death is noticed after 2 s, and what was asked of the dead is asked again."""
SECONDS = 20.0
VERSIONS = 3


class Churn:
    """Every half second something happens to somebody, by the network's own chance."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.network = Network(seed, SPEC)
        self.nodes = [self.network.add(SPEC) for _ in range(nodes)]
        self.least = nodes // 2
        self.artifacts: list[ArtifactId] = []
        self.network.run(0.5)

    def until(self, time: float) -> None:
        """Let time pass, also when nothing happens."""
        self.network.at(time, lambda: None)
        self.network.run(time)

    def publish(self) -> None:
        self.artifacts.append(self.network.publish(SIZE, SEGMENT, seconds=1.0, seq=len(self.artifacts) + 1))

    def happen(self) -> None:
        alive = [node for node in self.nodes if node.alive]
        match self.network.rng.randrange(4):
            case 0 if len(alive) > self.least:
                self.network.kill(self.network.rng.choice(alive), noticed_after=self.network.rng.choice((0.0, 2.0)))
            case 1:
                self.nodes.append(self.network.add(SPEC))
            case 2:
                a, b = self.network.rng.sample(alive, 2)
                self.network.cut(a.peer, b.peer)
                self.network.at(self.network.now + 1.0, partial(self.network.link, a, b))
            case _:
                pass

    def run(self, watch: SegmentWatch) -> None:
        """Some versions and churn, then quiet."""
        for number in range(int(SECONDS / LOOK)):
            if number % 12 == 0 and len(self.artifacts) < VERSIONS:
                self.publish()
            if number % 2 == 0 and number * LOOK < SECONDS / 2:
                self.happen()
            self.until(self.network.now + LOOK)
            watch.look([self.network.host, *self.nodes], self.artifacts, now=self.network.now)


@pytest.mark.parametrize("seed", range(8))
def test_a_missing_segment_a_live_holder_and_room_never_stay_together(seed: int) -> None:
    churn, watch = Churn(seed, nodes=6), SegmentWatch(BOUND)
    churn.run(watch)
    assert watch.stalls == []
    for node in churn.nodes:
        if node.alive:
            assert set(churn.artifacts) <= node.done.keys()


def test_the_watch_sees_a_node_that_could_go_on_and_does_not() -> None:
    churn, watch = Churn(1, nodes=1), SegmentWatch(BOUND)
    liar = churn.network.add(SPEC, HaveLiar)
    churn.until(1.0)
    churn.publish()
    for number in range(40):
        churn.until(1.0 + LOOK * number)
        watch.look([liar, *churn.nodes], churn.artifacts, now=churn.network.now)
    assert {peer for peer, _ in watch.stalls} == {liar.peer}, "it wants nothing, and has nothing"
