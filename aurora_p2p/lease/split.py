"""What is still open of a step, split among the nodes that come for it.

A node's part is that after which all of them are done at the same moment, by the speed measured for each and by what it
still works on. It is split anew at each ask: drift, a node that left and one that came show in the next lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from aurora_p2p.lease.book import Book, StepWork
from aurora_p2p.lease.fleet import Fleet, Node
from aurora_p2p.lease.share import mean_rate, shares
from aurora_p2p.types import PeerId, Step

CROWD = 64
"""With more nodes than that a split serves for CROWD_SECONDS: one costs 1 ms at 1,000 nodes, as much as all the rest of
a grant, and an ask moves it by less than a per cent."""
CROWD_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Split:
    """waiting: open samples when it was made. quota: how many of them each that comes for its part should take.

    given: what each was granted since.
    """

    made: float
    waiting: int
    eligible: Mapping[PeerId, Node]
    weights: Mapping[PeerId, float]
    """Tokens/s of the eligible ones, the mean for those not measured yet."""
    whole: float
    quota: Mapping[PeerId, int]
    given: Counter[PeerId] = field(default_factory=Counter)

    @property
    def alone(self) -> bool:
        """Whether one node does all the work: groups cannot be mixed then."""
        return len(self.eligible) < 2

    def part(self, peer: PeerId) -> float:
        """The share of a step, 0 to 1, that a node has by its speed."""
        if self.whole <= 0 or peer not in self.weights:
            return 1 / max(len(self.eligible), 1)
        return self.weights[peer] / self.whole

    def left(self, peer: PeerId) -> int:
        """What of its part the node has not been granted yet."""
        quota = self.quota.get(peer)
        return max((int(self.waiting * self.part(peer)) if quota is None else quota) - self.given[peer], 0)


class Splits:
    """Splits of one pool's steps."""

    def __init__(self, fleet: Fleet, book: Book) -> None:
        self._fleet, self._book = fleet, book
        self._kept: dict[Step, Split] = {}

    def of(self, work: StepWork, peer: PeerId, now: float) -> Split:
        """How the step's open samples are shared out; `peer` asks for its part."""
        step = work.submitted.step
        kept = self._kept.get(step)
        if kept is not None and now - kept.made < CROWD_SECONDS:
            return kept
        split = self._make(work, peer, now)
        self._kept = {step: one for step, one in self._kept.items() if step in self._book.steps}
        if len(split.eligible) > CROWD:
            self._kept[step] = split
        return split

    def allowance(self, split: Split, work: StepWork, peer: PeerId) -> int:
        """How many samples the node may have now. One whose speed decayed to nothing gets one when there are enough for
        all: it may have recovered."""
        waiting = work.open_samples()
        spare = peer not in self._book.held and waiting >= len(split.quota)
        return min(split.left(peer) or int(spare), waiting)

    def _make(self, work: StepWork, peer: PeerId, now: float) -> Split:
        eligible = self._fleet.eligible(work.submitted.step, self._book.held, now)
        rates = {other: node.rate for other, node in eligible.items()}
        mean = mean_rate(rates) or 0.0
        weights = {other: mean if rate is None else rate for other, rate in rates.items()}
        coming = {other: rates[other] for other in eligible if other == peer or self._comes(other, now)}
        waiting = work.open_samples()
        quota = shares(waiting, coming, {other: self._book.pending(other) for other in coming})
        return Split(now, waiting, eligible, weights, sum(weights.values()), quota)

    def _comes(self, peer: PeerId, now: float) -> bool:
        """Whether a node will take its part: it works on a lease that is not overdue, or asked a moment ago."""
        node, held = self._fleet.nodes[peer], self._book.held.get(peer)
        if held:
            return not any(self._fleet.is_overdue(lease, now) for lease in held.values())
        return not node.turned_away and now - node.asked < self._fleet.options.tail_seconds
