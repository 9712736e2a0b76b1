"""The lower bound that swarm figures are multiples of, and what one simulated run came to.

    bound = max(F / u_origin, F / d_min, N F / (u_origin + sum u_i), region cuts where there are some, production)
            + propagation

F: bytes of the artifact. u, d: upload and download, bytes/s. N: nodes that count, i.e. honest ones that stay; what the
others upload is not counted either. Region cuts: F / (what can enter region r) for each region without the origin, and
(regions - 1) F / (sum of all cuts) where every pair has one. Production: nothing completes before the last byte is
encoded. Propagation: the longest one-way delay from the origin to a node that counts. It is no schedule: no order of
transfers is known that reaches it, and slow start, control frames and segments as units of forwarding are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from aurora_p2p.testing.topology import NodeSpec, Topology


def lower_bound(
    size: int, origin: NodeSpec, nodes: Sequence[NodeSpec], topology: Topology, *, production: float = 0.0
) -> float:
    """Seconds from the start of production to the last node's last byte, at the very least."""
    terms = [production, size / origin.up, size / min(node.down for node in nodes)]
    terms.append(len(nodes) * size / (origin.up + sum(node.up for node in nodes)))
    terms.extend(_cut_terms(size, origin, {node.region for node in nodes} | {origin.region}, topology))
    return max(terms) + max(topology.delay(origin, node) for node in nodes)


def _cut_terms(size: int, origin: NodeSpec, regions: set[int], topology: Topology) -> list[float]:
    terms = []
    for region in regions - {origin.region}:
        into = [topology.cuts.get((other, region), float("inf")) for other in regions - {region}]
        into = [
            min(rate, topology.egress.get(other, float("inf")))
            for rate, other in zip(into, regions - {region}, strict=True)
        ]
        terms.append(size / sum(into))
    if origin.region in topology.egress and len(regions) > 1:
        terms.append(size / topology.egress[origin.region])
    ordered = [(a, b) for a in regions for b in regions if a != b]
    if ordered and all(pair in topology.cuts for pair in ordered):
        terms.append((len(regions) - 1) * size / sum(topology.cuts[pair] for pair in ordered))
    return terms


@dataclass(frozen=True, slots=True)
class Figures:
    """One artifact of one run. A ratio is None when the nodes did not all complete before the horizon.

    origin_copies: bytes that left the origin over F. cross_region_copies: segments that came in from another region
    over the artifact's segments; regions - 1 at least. duplicate_ratio: good segments that were discarded, of all that
    arrived.
    """

    last_over_bound: float | None
    median_over_bound: float | None
    origin_copies: float
    cross_region_copies: float
    duplicate_ratio: float


def medians(runs: Sequence[Figures]) -> dict[str, float | None]:
    """The median of each figure; None counts as longer than anything."""
    report: dict[str, float | None] = {}
    for name in Figures.__dataclass_fields__:
        values = [value if value is not None else float("inf") for value in (getattr(run, name) for run in runs)]
        middle = median(values)
        report[name] = None if middle == float("inf") else round(middle, 4)
    return report
