"""What the machine knows of one open connection: how fast the peer is, what was asked, what it asked.

Both directions are paced by what was seen, never by what was claimed, once there is something to see:
`seconds_per_byte` is a moving average over deliveries while work was outstanding, `latency` the shortest answer so far
(it contains the transfer of one segment). Failed requests feed neither: a time-out that feeds its own estimate is a
feedback trap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

from aurora_p2p.types import ArtifactId, PeerId

Key = tuple[ArtifactId, int]

UNKNOWN_RATE = 1e6
"""Bytes/s assumed of a peer that claims nothing."""
MAX_CLAIMED_RATE = 50e6 / 8
"""50 Mbit/s: what a claim alone is worth; more must be seen."""
MIN_CLAIMED_RATE = 16_384.0
"""A claim below this would stretch our time-outs for a peer that merely wants to hold us up."""
FIRST_GUESS_SHARE = 4
"""A new peer's uplink is taken to be shared by this many."""
SMOOTHING = 0.3
START_LATENCY = 0.1
MIN_SILENCE = 0.3
MAX_SILENCE = 30.0
SILENCE_FACTOR = 3.0
UNPROVEN_FACTOR = 3.0
"""A peer that never delivered may be so many times slower than those that did."""
MAX_SLOTS = 32
"""Requests outstanding at one peer."""
LONG_LATENCY = 0.05
LONG_SPARE = 1.5
"""Over a long way what is outstanding limits the rate that is seen, and so what is asked next: it grows by half."""
MAX_LATE = 256
"""Cancelled or timed-out requests remembered, so that their late answers are welcome."""
MAX_QUEUE = 64
"""Requests of one peer that we accept at a time; more are rejected as busy."""
MIN_COMPLAINTS = 2
"""One may be a request that crossed an announcement on the way."""
MANY_PUSHES = 16
"""Of so many, half without a complaint, and a gateway is trusted again."""
MIN_STUCK = 2.0
STUCK_FACTOR = 8.0


class Pace:
    """Seconds per byte of deliveries, as a moving average; starts from a guess."""

    def __init__(self, bytes_per_second: float) -> None:
        self.seconds_per_byte = 1 / bytes_per_second
        self.last = float("-inf")
        self.measured = False

    def deliver(self, count: int, since: float, now: float) -> None:
        """`count` bytes arrived; the oldest outstanding work is from `since`.

        A short last segment counts in full: its time is the queue's, and would make the peer look slow.
        """
        sample = max(now - max(since, self.last), 0.0) / max(count, 1)
        weight = SMOOTHING if self.measured else 1.0
        self.seconds_per_byte += weight * (sample - self.seconds_per_byte)
        self.last, self.measured = now, True

    def guess(self, bytes_per_second: float) -> None:
        """Replace the guess, if nothing was measured yet."""
        if not self.measured:
            self.seconds_per_byte = 1 / bytes_per_second


@dataclass(slots=True)
class Upload:
    """A segment the peer asked for, waiting here."""

    artifact: ArtifactId
    index: int


@dataclass(slots=True)
class Sending:
    """A segment handed to the driver. carries_page: later segments on this link count on it, so it is not cancelled."""

    since: float
    length: int
    push: bool
    carries_page: int | None


@dataclass(slots=True, eq=False)
class Link:
    peer: PeerId
    is_host: bool
    claimed: float = UNKNOWN_RATE
    latency: float = START_LATENCY
    incoming: Pace = field(default_factory=lambda: Pace(UNKNOWN_RATE / FIRST_GUESS_SHARE))
    outgoing: Pace = field(default_factory=lambda: Pace(UNKNOWN_RATE / FIRST_GUESS_SHARE))
    requests: dict[Key, float] = field(default_factory=dict)
    """What we asked, oldest first, and when."""
    late: dict[Key, None] = field(default_factory=dict)
    peer_queue: int = 0
    """Segments waiting in the peer's uplink, by its last Have."""
    hedged_at: float | None = None
    """When its present silence was hedged."""
    pushes: int = 0
    """First copies that we handed over to it, as the gateway of its region."""
    complaints: int = 0
    """How many of them others of its region asked us for."""
    stalls: int = 0
    """How often it stalled since it delivered last, artifacts and connections before this one included."""
    resume_at: float = float("-inf")
    """It said busy."""
    queue: deque[Upload] = field(default_factory=deque)
    sending: dict[Key, Sending] = field(default_factory=dict)
    pages: set[Key] = field(default_factory=set)
    """(artifact, first segment) of the pages that travelled this link, in either direction."""
    offers: dict[ArtifactId, bool] = field(default_factory=dict)
    """Headers that travelled this link, in either direction; True with the final page."""
    reach: float = 1.0
    """Share of its claim that a new peer is believed: less for one that others cannot dial."""
    passing: float | None = None
    """Seconds from handing it a first copy until a third party has it, as a moving average."""
    weight: float = 1.0
    """Share of its claim that the origin trusts the peer with: halved when it fails to pass segments on."""
    _answered: bool = False

    @property
    def doubted(self) -> bool:
        """What it gets does not seem to come to the others of its region."""
        return self.complaints >= MIN_COMPLAINTS and 2 * self.complaints >= self.pushes

    def pushed(self) -> None:
        """One more first copy is handed over to it, as a gateway. What was long ago counts less."""
        self.pushes += 1
        if self.pushes > MANY_PUSHES:
            self.pushes, self.complaints = self.pushes // 2, self.complaints // 2

    @property
    def snubbed(self) -> bool:
        """It stalled: one request at a time until it delivers."""
        return self.stalls > 0

    @property
    def silent(self) -> bool:
        """It let us wait longer than it should, and has delivered nothing since: what it alone has is not here."""
        return self.hedged_at is not None or self.stalls > 0

    def claim(self, up_kbps: int) -> None:
        """The peer's claimed upload, kbit/s (0: not said)."""
        rate = up_kbps * 125.0 or UNKNOWN_RATE
        self.claimed = min(max(rate, MIN_CLAIMED_RATE), MAX_CLAIMED_RATE)
        self.incoming.guess(self.claimed / FIRST_GUESS_SHARE)

    def slots(self, segment_bytes: int, now: float) -> int:
        """How many more requests the peer should get now: enough to cover the round trip, and at least two.

        None while it is silent: they would wait too, and make its silence look shorter.
        """
        if now < self.resume_at or self.hedged_at is not None:
            return 0
        if self.snubbed:
            return 1 - len(self.requests)
        seconds = self.incoming.seconds_per_byte * segment_bytes
        if self.latency <= seconds:
            return 2 - len(self.requests)
        spare = LONG_SPARE if self.latency > LONG_LATENCY else 1.0
        return min(ceil(spare * self.latency / max(seconds, 1e-9)) + 1, MAX_SLOTS) - len(self.requests)

    def cost(self, segment_bytes: int) -> float:
        """Seconds until one more request here would be answered."""
        waiting = len(self.requests) + 1 + min(self.peer_queue, MAX_QUEUE)
        return self.latency + waiting * segment_bytes * self.incoming.seconds_per_byte

    def answer_seconds(self, segment_bytes: int) -> float:
        """Until one request is answered by a peer that serves nobody else."""
        return self.latency + segment_bytes * self.incoming.seconds_per_byte

    def silence(self, segment_bytes: int, usual: float) -> float:
        """Seconds without any delivery after which a request is hedged; twice that, and it has stalled.

        usual: `answer_seconds` of the peers that did deliver, infinite where none did. Of one that never delivered only
        little more is expected, and its own word on its queue must not make us wait for it.
        """
        expected, queued = self.answer_seconds(segment_bytes), 0.0
        if self.incoming.measured:
            slowest = min(1 / self.claimed, self.incoming.seconds_per_byte)
            queued = min(self.peer_queue, MAX_QUEUE) * segment_bytes * slowest
        else:
            expected = min(expected, UNPROVEN_FACTOR * usual)
        return min(max(MIN_SILENCE, SILENCE_FACTOR * expected + queued), MAX_SILENCE)

    def stuck_at(self) -> float:
        """When the peer will have taken nothing for so long that its uploads no longer count against our uplink."""
        if not self.sending:
            return float("inf")
        oldest = next(iter(self.sending.values()))
        expected = self.outgoing.seconds_per_byte * oldest.length * len(self.sending)
        return max(oldest.since, self.outgoing.last) + max(MIN_STUCK, STUCK_FACTOR * expected)

    def is_stuck(self, now: float) -> bool:
        """Whether it has taken nothing for so long."""
        oldest = next(iter(self.sending.values()), None)
        return oldest is not None and oldest.since + MIN_STUCK <= now and self.stuck_at() <= now

    def quiet_since(self) -> float:
        """When the present silence began; infinite while nothing is asked."""
        return max(next(iter(self.requests.values())), self.incoming.last) if self.requests else float("inf")

    def delivered(self, key: Key, length: int, now: float) -> bool:
        """A segment arrived. Whether it was asked for, now or earlier."""
        since = self.requests.pop(key, None)
        if since is None:
            known = key in self.late
            self.late.pop(key, None)
            return known
        self.answered(now - since)
        self.incoming.deliver(length, since, now)
        self.hedged_at, self.stalls = None, 0
        return True

    def answered(self, seconds: float) -> None:
        """Something we sent was answered after this long."""
        self.latency = max(min(self.latency, seconds) if self._answered else seconds, 1e-4)
        self._answered = True

    def passed_on(self, seconds: float) -> None:
        """A first copy was with a third party this long after we had handed it over."""
        known = self.passing if self.passing is not None else seconds
        self.passing = known + SMOOTHING * (seconds - known)

    def give_up(self, key: Key) -> None:
        """Stop waiting for a request, but welcome its answer."""
        if self.requests.pop(key, None) is not None:
            if len(self.late) >= MAX_LATE:
                del self.late[next(iter(self.late))]
            self.late[key] = None
