"""The nodes as the work pool sees them: who is active, how fast each is, how large and how long its next lease is.

Shares and deadlines use the speed the host measured. A node's own claim decides only how many samples it gets at once:
a lie costs it nothing but its own granularity, for its share and its deadline bound the lease as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from aurora_p2p.errors import UsageError
from aurora_p2p.lease.admission import lag_allowed
from aurora_p2p.lease.book import LiveLease
from aurora_p2p.lease.share import MEMORY, mean_rate, updated_rate
from aurora_p2p.types import NO_BASE, PeerId, Step, Version
from aurora_p2p.wire.control import LeaseRequest, Reason
from aurora_p2p.wire.limits import MAX_LEASE_SAMPLES, MAX_MEMBERS

SLACK = 3.0
"""A lease lasts this many times the worst case (every sample max_tokens long, at the measured speed)."""
OVERDUE = 1.5
"""A lease that takes so many times as long as expected is lost, or its node is not as fast as it was: samples differ in
length by less, once there are a few in a lease."""
PARTS = 8
"""A lease holds more than `aim_seconds` of work only while it is at most one of so many parts of its node's work."""
LAST_LEASE = 1.25
"""A node whose part of what is left is less than so many leases gets it at once: all end together."""
UNKNOWN_SPEED = 10.0
"""Tokens/s assumed of a node that nothing is known of: so slow that its first lease is not cut short."""
MAX_NODES = 4 * MAX_MEMBERS
"""Nodes remembered with their speed; beyond it the one that asked least recently is forgotten."""


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """The rules of one run. Seconds are CLOCK_BOOTTIME."""

    max_lag: int = 1
    """S: 1 is one-step asynchronous."""
    aim_seconds: float = 1.0
    """A lease holds about this much work: a node commits new versions only between leases."""
    most_aim_seconds: float = 4.0
    """As long as far more of a step is left, a lease may hold so much work: fewer round trips in which a node idles."""
    min_lease_samples: int = 8
    """Never cut leases smaller to meet the aim: an engine needs a batch to be fast."""
    max_lease_samples: int = 256
    min_lease_seconds: float = 10.0
    max_lease_seconds: float = 600.0
    leases_per_node: int = 2
    """One being worked on, one fetched ahead (or lost in a crash a moment ago)."""
    max_renewals: int = 10
    """Of a lease without a new sample in between: far longer than any sample takes, and still an end."""
    active_seconds: float = 15.0
    """A node that asked this recently, or holds a lease, has a share."""
    tail_seconds: float = 0.5
    """A share whose owner has not asked for this long may go to another node."""

    def __post_init__(self) -> None:
        if not (self.max_lag >= 0 and 1 <= self.min_lease_samples <= self.max_lease_samples <= MAX_LEASE_SAMPLES):
            raise UsageError("lease options: max_lag >= 0, 1 <= min_lease_samples <= max_lease_samples <= 1024")
        if not 0 < self.min_lease_seconds <= self.max_lease_seconds:
            raise UsageError("lease options: 0 < min_lease_seconds <= max_lease_seconds")


@dataclass(slots=True)
class Node:
    asked: float = -math.inf
    version: Version = NO_BASE
    rate: float | None = None
    """Moving average of tokens/s over its leases, measured here."""
    claim: float = 0.0
    """The node's own figure, tokens/s."""
    ended: float = -math.inf
    """When its last lease ended."""
    turned_away: bool = False
    """Its last ask got nothing: no reason to keep a share for it."""
    admitted: int = 0
    refused: Counter[Reason] = field(default_factory=Counter)
    withheld: int = 0
    """Samples it leased and never sent."""


@dataclass(slots=True)
class Fleet:
    options: LeaseOptions
    nodes: dict[PeerId, Node] = field(default_factory=dict)
    mean_tokens: float | None = None
    """Moving average length of an admitted sample."""

    def node(self, peer: PeerId) -> Node:
        if peer not in self.nodes and len(self.nodes) >= MAX_NODES:
            del self.nodes[min(self.nodes, key=lambda other: self.nodes[other].asked)]
        return self.nodes.setdefault(peer, Node())

    def asked(self, peer: PeerId, request: LeaseRequest, now: float) -> Node:
        node = self.node(peer)
        node.asked, node.version, node.claim = now, request.version, request.tokens_per_second
        return node

    def eligible(self, step: Step, busy: Collection[PeerId], now: float) -> dict[PeerId, Node]:
        """Active nodes whose version may work on `step`. busy: peers that hold a live lease."""
        return {
            peer: node
            for peer, node in self.nodes.items()
            if (now - node.asked <= self.options.active_seconds or peer in busy)
            and lag_allowed(step, node.version, self.options.max_lag)
        }

    def is_overdue(self, lease: LiveLease, now: float) -> bool:
        """Whether the lease takes much longer than its lessee's measured speed lets expect; never without one."""
        node = self.nodes.get(lease.terms.lessee)
        if node is None or node.rate is None or self.mean_tokens is None:
            return False
        tokens = len(lease.terms.samples) * self.mean_tokens
        expected = tokens / node.rate if node.rate > 0 else self.options.aim_seconds
        return now - max(lease.granted, node.ended) > OVERDUE * expected + self.options.tail_seconds

    def rescue_seconds(self, node: Node, lease: LiveLease, now: float) -> float:
        """How much sooner `node`, idle, would be done with what is left of a lease than its lessee. Guesses."""
        if not self.mean_tokens:
            return 0.0
        left, taken = len(lease.seeds) * self.mean_tokens, now - lease.granted
        theirs = left * taken / lease.tokens if lease.tokens else taken
        return theirs - left / max(self.speed(node), 1e-9)

    def speed(self, node: Node) -> float:
        """Best guess of a node's tokens/s: measured, else claimed, else the mean of the others."""
        if node.rate is not None:
            return node.rate
        return node.claim or mean_rate({peer: other.rate for peer, other in self.nodes.items()}) or UNKNOWN_SPEED

    def lease_samples(self, node: Node, allowed: int, held: int, wanted: int, max_tokens: int) -> int:
        """How many of the `allowed` samples its next lease has; 0 when the `held` ones fill the longest lease."""
        options = self.options
        by_aim, by_most = (
            math.ceil(node.claim * seconds / (self.mean_tokens or max_tokens))
            for seconds in (options.aim_seconds, options.most_aim_seconds)
        )
        size = max(options.min_lease_samples, by_aim, min(by_most, allowed // PARTS))
        if allowed <= LAST_LEASE * size:
            size = allowed
        finishable = int(self.speed(node) * options.max_lease_seconds / max_tokens) - held
        count = min(size, allowed, options.max_lease_samples, wanted)
        return min(count, max(finishable, 0 if held else 1))

    def lease_seconds(self, node: Node, samples: int, max_tokens: int) -> float:
        """Duration of a lease after which `samples` (those already held included) should all be finished."""
        options, speed = self.options, self.speed(node)
        needed = SLACK * samples * max_tokens / speed if speed else math.inf
        return min(max(needed, options.min_lease_seconds), options.max_lease_seconds)

    def admitted(self, peer: PeerId, tokens: int) -> None:
        self.node(peer).admitted += 1
        mean = self.mean_tokens
        self.mean_tokens = float(tokens) if mean is None else MEMORY * mean + (1 - MEMORY) * tokens

    def lease_ended(self, peer: PeerId, granted: float, tokens: int, now: float) -> None:
        """Fold a lease into the node's speed. Leases of a node may overlap: each counts from the last one's end."""
        node = self.node(peer)
        seconds = now - max(granted, node.ended)
        node.rate = updated_rate(node.rate, tokens, seconds, max(1.0, seconds / self.options.aim_seconds))
        node.ended = now
