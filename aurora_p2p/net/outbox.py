"""Events of the bulk child on their way to the daemon, in order, without ever blocking the thread that reports them.

One thread writes them to the pipe. While more than CONGESTED of them wait, links stop reading from their peers; what
else can be reported is bounded by what the daemon has commanded. About once a second, when something changed, it adds
BulkStats.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection

from aurora_p2p.local.channel import Channel
from aurora_p2p.local.clock import boottime
from aurora_p2p.net.tls import Fault
from aurora_p2p.types import PeerId
from aurora_p2p.wire.bulk import (
    BulkCommand,
    BulkEvent,
    BulkStats,
    LinkClosed,
    LinkOpened,
    SegmentArrived,
    SegmentSent,
)

CONGESTED = 256
"""Events waiting beyond which reading pauses: half a second of small segments at 500 a second."""
STATS_SECONDS = 1.0
LinkStates = Collection[tuple[PeerId, int, int]]
"""(peer, round trip in microseconds or 0, connections) of each open link."""


class Outbox:
    """`drained` is called, in the writer's thread, when the congestion is over; `look` for the state of the links."""

    def __init__(
        self, channel: Channel[BulkCommand], drained: Callable[[], None], look: Callable[[], LinkStates]
    ) -> None:
        self.congested = False
        self._channel, self._drained, self._look = channel, drained, look
        self._changed = threading.Condition()
        self._waiting: deque[BulkEvent] = deque()
        self._writing = False
        self._sent: Counter[PeerId] = Counter()
        self._received: Counter[PeerId] = Counter()
        self._refused: Counter[Fault] = Counter()
        self._stats_due = False

    def put(self, event: BulkEvent) -> None:
        with self._changed:
            self._waiting.append(event)
            self.congested = self.congested or len(self._waiting) > CONGESTED
            if isinstance(event, SegmentSent):
                self._sent[event.peer] += event.length
                self._stats_due = True
            elif isinstance(event, SegmentArrived):
                self._received[event.peer] += event.length
                self._stats_due = True
            elif isinstance(event, LinkOpened | LinkClosed):
                self._stats_due = True
            self._changed.notify_all()

    def refused(self, fault: Fault) -> None:
        """Count an incoming handshake that failed."""
        with self._changed:
            self._refused[fault] += 1
            self._stats_due = True
            self._changed.notify_all()

    def touched(self) -> None:
        """A lane has opened or ended: the state of the links is due."""
        with self._changed:
            self._stats_due = True
            self._changed.notify_all()

    def forget_except(self, members: Collection[PeerId]) -> None:
        """Keep counters of members only: they are bounded by the roster."""
        with self._changed:
            for counter in (self._sent, self._received):
                for peer in [peer for peer in counter if peer not in members]:
                    del counter[peer]

    def flush(self, seconds: float) -> None:
        """Wait, at most so long, until everything is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._writing, seconds)

    def run(self) -> None:
        """Write events for ever. Raises EOFError when the daemon is gone."""
        stats_at = boottime()
        while True:
            now = boottime()
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                relieved = self.congested and len(self._waiting) <= CONGESTED // 2
                self.congested = self.congested and not relieved
                due = self._stats_due and now >= stats_at
                if not self._waiting and not due and not relieved:
                    self._changed.wait(max(stats_at - now, 0.0) if self._stats_due else None)
                batch = self._take()
                self._writing = bool(batch or due)
            if due:
                batch.append(self._stats())
                stats_at = now + STATS_SECONDS
            if relieved:
                self._drained()
            if batch:
                self._channel.send_batch(batch)

    def _take(self) -> list[BulkEvent]:
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), CONGESTED // 2))]

    def _stats(self) -> BulkStats:
        links = tuple(self._look())  # takes the links' lock, whose holders put events: never under ours
        with self._changed:
            self._stats_due = False
            peers = tuple((peer, self._sent[peer], self._received[peer]) for peer in {*self._sent, *self._received})
            refused = tuple(sorted((fault.value, count) for fault, count in self._refused.items()))
        return BulkStats(peers, refused, links)
