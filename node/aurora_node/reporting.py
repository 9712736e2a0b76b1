"""A node's reports to its host: what is being fetched, staged and served, for the people who look at the host; and how
far others are, for the regions that the host makes.

    progress_of(...)        what there is to say now
    Reports                 when to say it: on change, at most once a second, and again every REPEAT_SECONDS
    keep_reporting(...)     the task: look, send, until cancelled
    keep_measuring(...)     the same for distances, every DISTANCE_SECONDS

Nothing depends on a report: one that the host does not take, or refuses, is followed by the next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

import trio

from aurora_node.weights import Weights
from aurora_node.work import WorkFigures
from aurora_p2p.local.clock import boottime
from aurora_p2p.net.drive import ExchangeDriver
from aurora_p2p.types import NO_BASE, PeerId
from aurora_p2p.wire.control import Distance, Distances, Progress
from aurora_p2p.wire.limits import MAX_DISTANCES, MAX_RTT_MS

LOOK_SECONDS = 1.0
"""Between two looks, and so the shortest time between two reports."""
REPEAT_SECONDS = 15.0
DISTANCE_SECONDS = 15.0
"""Between two reports of distances: regions change at most once a minute, and a report may get lost."""
"""An unchanged report is sent again: a host that was restarted knows of everybody within this time."""
STATE_LETTERS = 200
"""Of the state line; the wire allows 512 characters."""


def progress_of(weights: Weights, figures: WorkFigures, driver: ExchangeDriver) -> Progress:
    """What this node says of itself now."""
    wanted = weights.fetching
    have, total = driver.reach_of(wanted.artifact) if wanted is not None else (0, 0)
    return Progress(
        fetching=wanted.header.version if wanted is not None else NO_BASE,
        have=have.bit_count(),
        total=total,
        staged=weights.newest,
        committed=weights.held.version if weights.held is not None else NO_BASE,
        state=(weights.problem or figures.state)[:STATE_LETTERS],
    )


class Reports:
    """When a report is due. Sans-IO."""

    def __init__(self) -> None:
        self._told: Progress | None = None
        self._repeat_at = 0.0

    def due(self, progress: Progress, now: float) -> bool:
        """Whether it differs from the last one, or that was long ago."""
        return progress != self._told or now >= self._repeat_at

    def sent(self, progress: Progress, now: float, *, taken: bool) -> None:
        """It was sent; one that was not taken is due again at the next look."""
        self._told = progress if taken else None
        self._repeat_at = now + REPEAT_SECONDS


async def keep_reporting(look: Callable[[], Progress], send: Callable[[Progress], Awaitable[bool]]) -> None:
    """Report until cancelled. send: HostLink.report, which returns whether the host took it and raises nothing."""
    reports = Reports()
    while True:
        progress = look()
        if reports.due(progress, boottime()):
            reports.sent(progress, boottime(), taken=await send(progress))
        await trio.sleep(LOOK_SECONDS)


def distances_of(rtts: Mapping[PeerId, float], hosts: Collection[PeerId]) -> Distances:
    """What to say of round trips in seconds: the nearest ones, without the hosts, which measure for themselves."""
    nearest = sorted((seconds, peer) for peer, seconds in rtts.items() if peer not in hosts)[:MAX_DISTANCES]
    return Distances(tuple(Distance(peer, min(round(seconds * 1000), MAX_RTT_MS)) for seconds, peer in nearest))


async def keep_measuring(look: Callable[[], Distances], send: Callable[[Distances], Awaitable[bool]]) -> None:
    """Report distances until cancelled, once there are any. send: HostLink.report."""
    while True:
        await trio.sleep(DISTANCE_SECONDS)
        distances = look()
        if distances.peers:
            await send(distances)
