"""The networks of benchmarks.swarm_net, and the bound that nothing can beat in them.

    h8       8 nodes and the origin at 50 Mbit/s each way
    het8     8 nodes at 50, 100, ... 400 Mbit/s, the origin at 200
    reg44    4 nodes in the origin's region and 4 in another, 100 Mbit/s each, 50 Mbit/s between the regions

The sum of all rates stays where two cores can carry it: above 400 Mbit/s together, the CPU decides and not the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from aurora_p2p.testing.netlab import Access

BITS = 8e-6
"""Megabits of a byte."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """lines: of the origin, then of the nodes. cut: Mbit/s between regions, each way; 0 where there is one region."""

    lines: tuple[Access, ...]
    cut: float = 0.0

    @property
    def nodes(self) -> range:
        return range(1, len(self.lines))

    def bound(self, size: int, payload_ratio: float) -> float:
        """Seconds in which `size` bytes could reach the last node, at best.

        The origin must send each byte once; the slowest line must take everything; all uploads together must carry a
        copy for each node; the cut must be crossed once. Only payload_ratio of a line's rate is payload.
        """
        megabits = size * BITS / payload_ratio
        nodes, origin = self.lines[1:], self.lines[0]
        everybody = len(nodes) * megabits / sum(line.up for line in self.lines)
        bounds = [megabits / origin.up, megabits / min(line.down for line in nodes), everybody]
        return max([*bounds, megabits / self.cut] if self.cut else bounds)

    @property
    def narrowest(self) -> tuple[int, float]:
        """(the node to calibrate with, the rate to expect) for a plain connection from the origin."""
        far = [node for node in self.nodes if self.lines[node].region != self.lines[0].region]
        node = far[0] if self.cut and far else min(self.nodes, key=lambda one: self.lines[one].down)
        rates = [self.lines[0].up, self.lines[node].down]
        return node, min([*rates, self.cut] if self.cut else rates)


def _equal(mbit: float, region: int = 0) -> Access:
    return Access(mbit, mbit, region)


SCENARIOS = {
    "h8": Scenario((_equal(50),) * 9),
    "het8": Scenario((_equal(200), *(_equal(50 * step) for step in range(1, 9)))),
    "reg44": Scenario((*((_equal(100),) * 5), *((_equal(100, 1),) * 4)), cut=50),
}
