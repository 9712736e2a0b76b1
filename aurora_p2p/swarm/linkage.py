"""Median linkage over a sparse table of distances: the two nearest clusters become one, until none are near enough.

Pure. The distance of two clusters is the (lower) median of the known distances between their members, so that a few
false ones change nothing, and of one true and one false distance, the false one being too long, the true one counts;
clusters without a known distance are never joined. The result does not depend on any order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from aurora_p2p.types import PeerId

Edge = tuple[PeerId, PeerId, int]
Cluster = frozenset[PeerId]


def join_near(
    start: Iterable[Cluster], edges: Iterable[Edge], limit: Callable[[Cluster, Cluster], int]
) -> list[Cluster]:
    """What the clusters of `start` (disjoint, not empty) grow into, sorted by their smallest members.

    edges: each pair once. limit: the largest distance at which two clusters are joined.
    """
    clusters = _Clusters(start, edges)
    while (pair := clusters.nearest(limit)) is not None:
        clusters.join(*pair)
    return [clusters.members[name] for name in sorted(clusters.members)]


class _Clusters:
    def __init__(self, start: Iterable[Cluster], edges: Iterable[Edge]) -> None:
        self.members = {min(cluster): cluster for cluster in start}
        """By smallest member."""
        self._between: dict[PeerId, dict[PeerId, list[int]]] = {name: {} for name in self.members}
        """The known distances of two clusters, sorted; one list, found from both sides."""
        self._heap: list[tuple[int, PeerId, PeerId]] = []
        home = {peer: name for name, cluster in self.members.items() for peer in cluster}
        for one, other, distance in edges:
            if one in home and other in home and home[one] != home[other]:
                self._add(home[one], home[other], [distance])
        for name, others in self._between.items():
            for other in others:
                if name < other:
                    self._push(name, other)

    def nearest(self, limit: Callable[[Cluster, Cluster], int]) -> tuple[PeerId, PeerId] | None:
        """The nearest pair that may be joined; one that may not is passed over until one of the two has grown."""
        while self._heap:
            distance, one, other = heapq.heappop(self._heap)
            still = other in self._between.get(one, ()) and self._distance(one, other) == distance
            if still and distance <= limit(self.members[one], self.members[other]):
                return one, other
        return None

    def join(self, one: PeerId, other: PeerId) -> None:
        """The second becomes part of the first, whose name is the smaller."""
        self.members[one] |= self.members.pop(other)
        del self._between[one][other]
        for third, distances in self._between.pop(other).items():
            if third != one:
                del self._between[third][other]
                self._add(one, third, distances)
        for third in self._between[one]:
            self._push(min(one, third), max(one, third))

    def _add(self, one: PeerId, other: PeerId, distances: list[int]) -> None:
        merged = sorted(self._between[one].get(other, []) + distances)
        self._between[one][other] = self._between[other][one] = merged

    def _distance(self, one: PeerId, other: PeerId) -> int:
        known = self._between[one][other]
        return known[(len(known) - 1) // 2]

    def _push(self, one: PeerId, other: PeerId) -> None:
        heapq.heappush(self._heap, (self._distance(one, other), one, other))
