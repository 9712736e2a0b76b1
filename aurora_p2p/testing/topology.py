"""Where nodes are and what lies between them: regions, round trips, shared cuts, loss, parallel connections.

Everything is a figure of the path, the same in both directions unless a cut says otherwise. Two nodes are apart by the
sum of half of each one's own round trip and of the round trip between their regions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt

MSS = 1448
"""Payload of a TCP segment on Ethernet with time stamps."""
INITIAL_WINDOW = 10 * MSS
"""RFC 6928."""
MAX_WINDOW = 4 * 2**20
"""Linux' default upper limit of a socket's send buffer (tcp_wmem)."""
RTO_SECONDS = 0.2
"""Linux' least retransmission time-out beyond the round trip; a window is halved for each one of silence (RFC 2861)."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """up, down: bytes/s. rtt: seconds to the middle of the region and back; two nodes are half the sum apart.

    nat: cannot be dialled. claimed: the upload that its record and its Hello claim, bytes/s; None tells the truth.
    """

    up: float = 1e6
    down: float = 1e6
    rtt: float = 0.01
    region: int = 0
    nat: bool = False
    probation: bool = False
    claimed: float | None = None

    @property
    def up_kbps(self) -> int:
        return int((self.up if self.claimed is None else self.claimed) / 125)


@dataclass(frozen=True, slots=True)
class Window:
    """Bytes that one connection may have in flight at first and at most; cools: it falls back when nothing is sent."""

    start: float = INITIAL_WINDOW
    limit: float = MAX_WINDOW
    cools: bool = True


@dataclass(frozen=True, slots=True)
class Topology:
    """rtts: seconds between regions, by ordered pair; a missing pair counts as 0.

    cuts: bytes/s that all traffic from one region to another shares; egress: the same for all that leaves a region.
    lanes: connections of a link across regions; with more than one, the first carries control frames only, as in
    net/drive.py. loss: share of packets lost across regions. slow_start: False starts every window at its limit. cools:
    windows fall back in a pause, as with CUBIC unless net.ipv4.tcp_slow_start_after_idle is 0; with BBR they do not.
    striped: a segment travels over all lanes of its link at once instead of whole on one.
    """

    rtts: Mapping[tuple[int, int], float] = field(default_factory=dict)
    cuts: Mapping[tuple[int, int], float] = field(default_factory=dict)
    egress: Mapping[int, float] = field(default_factory=dict)
    lanes: int = 1
    loss: float = 0.0
    slow_start: bool = True
    cools: bool = True
    striped: bool = False

    def round_trip(self, a: NodeSpec, b: NodeSpec) -> float:
        """Seconds there and back."""
        return (a.rtt + b.rtt) / 2 + self.rtts.get((a.region, b.region), 0.0)

    def delay(self, a: NodeSpec, b: NodeSpec) -> float:
        """Seconds one way."""
        return self.round_trip(a, b) / 2

    def connections(self, a: NodeSpec, b: NodeSpec) -> tuple[int, Window]:
        """The lanes of a link, and the window of each.

        The limit is the send buffer, or what loss leaves: rate = 1.22 MSS / (RTT sqrt(p)) (Mathis et al. 1997), so the
        window is 1.22 MSS / sqrt(p) whatever the round trip. Striped lanes are one lane with the windows of all.
        """
        far = a.region != b.region
        limit = float(MAX_WINDOW)
        if far and self.loss > 0:
            limit = max(min(1.22 * MSS / sqrt(self.loss), limit), 2.0 * MSS)
        lanes = self.lanes if far else 1
        width = lanes - 1 if self.striped and lanes > 1 else 1
        start = float(min(INITIAL_WINDOW, limit)) if self.slow_start else limit
        return min(lanes, 2) if self.striped else lanes, Window(width * start, width * limit, self.cools)
