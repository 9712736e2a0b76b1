"""How the host learns who is near whom: reports of members and its own round trips in, regions for the roster out.

    report(...)         a member's Distances, at most one every REPORT_SECONDS
    keep_surveyed(...)  the task: look, assign (swarm/regions.py, in a thread), and hand over what has changed

A roster with new regions goes out between artifacts like any other, and regions change at most every CHANGE_SECONDS.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import trio

from aurora_p2p.errors import UsageError
from aurora_p2p.swarm.regions import Regions
from aurora_p2p.types import PeerId
from aurora_p2p.wire.control import Distances, Reason, Refusal
from aurora_p2p.wire.trust import MAX_REGIONS

LOOK_SECONDS = 10.0
"""So soon a swarm that has just come together gets its regions."""
CHANGE_SECONDS = 60.0
"""A new roster goes to everybody, and links are redrawn for it."""
REPORT_SECONDS = 5.0
"""An honest node reports a third as often."""


class Survey:
    """Collects words; `assign` may run in a thread while reports come in."""

    def __init__(self, host: PeerId, pins: Mapping[PeerId, int]) -> None:
        self._host, self._regions = host, Regions(host, pins)
        self._heard: dict[PeerId, Mapping[PeerId, float]] = {}
        """Not handed to the regions yet."""
        self._heard_at: dict[PeerId, float] = {}
        self._looks = 0

    def report(self, peer: PeerId, distances: Distances, *, now: float) -> Refusal | None:
        """Take a member's word, or refuse it by name."""
        wait = self._heard_at.get(peer, now - REPORT_SECONDS) + REPORT_SECONDS - now
        if wait > 0:
            return Refusal(Reason.TOO_OFTEN, f"one report every {REPORT_SECONDS:g} s", retry_seconds=wait)
        self._heard_at[peer] = now
        self._heard[peer] = {distance.peer: distance.rtt_ms / 1000 for distance in distances.peers}
        return None

    def prepare(self, rtts: Mapping[PeerId, float], members: Collection[PeerId]) -> None:
        """Hand everything heard to the regions. rtts: the host's own round trips, seconds."""
        for peer, distances in self._heard.items():
            self._regions.report(peer, distances)
        self._regions.report(self._host, rtts)
        self._heard.clear()
        self._heard_at = {peer: at for peer, at in self._heard_at.items() if peer in members}

    def status(self) -> dict[str, int]:
        """Assignments so far, and members that have reported."""
        return {"looks": self._looks, "reporters": len(self._heard_at)}

    def assign(self, members: Collection[PeerId]) -> dict[PeerId, int]:
        """Member -> region. A second for a thousand members that are all new."""
        regions = self._regions.assign(members)
        self._looks += 1
        return regions


async def keep_surveyed(
    survey: Survey,
    look: Callable[[], tuple[Mapping[PeerId, float], Collection[PeerId]]],
    move: Callable[[Mapping[PeerId, int]], bool],
) -> None:
    """Until cancelled. look: (the host's round trips, the members). move: takes regions; whether any is new."""
    while True:
        await trio.sleep(LOOK_SECONDS)
        rtts, members = look()
        survey.prepare(rtts, members)
        if move(await trio.to_thread.run_sync(survey.assign, members)):
            await trio.sleep(CHANGE_SECONDS - LOOK_SECONDS)


def read_pins(lines: Sequence[str]) -> dict[PeerId, int]:
    """ "12D3Koo...=3" -> {peer: 3}. Raises UsageError."""
    pins = {}
    for line in lines:
        peer, separator, number = line.partition("=")
        if not separator or not peer.strip() or number.strip() not in map(str, range(MAX_REGIONS)):
            raise UsageError(f"{line!r} is no pinned region", hint=f"write PEER=NUMBER, 0 to {MAX_REGIONS - 1}")
        pins[PeerId(peer.strip())] = int(number)
    return pins
