"""The first join: tried until a host answers, for a machine may start before its network, and a node before its host.

    JOIN --nobody answers, or the roster is full--> WAIT (longer each time) --> JOIN ... --> a member
      \\--refused, revoked, or nothing to dial--> raised: trying again changes nothing

The record is made anew for each attempt that finds other addresses: those of a machine without its network are no use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from aurora_p2p.errors import AuroraError, RefusedError, UnreachableError
from aurora_p2p.local.output import Output
from aurora_p2p.wire.trust import PeerRecord

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 15.0
"""A network that has come up is noticed soon, and a host that is down is asked four times a minute."""
LONGEST_REFUSAL_SECONDS = 60.0
"""What a host may ask for before it is asked again."""


class Joins(Protocol):
    """The part of HostLink that joins."""

    async def join(self, record: PeerRecord) -> None: ...


async def join_patiently(link: Joins, record: Callable[[], PeerRecord], output: Output) -> None:
    """Join; say why it does not succeed once for each reason, and go on trying until it does or is cancelled.

    Raises RefusedError for a refusal that holds, StaleError, UsageError when there is nothing to dial.
    """
    pause, told = FIRST_PAUSE_SECONDS, ""
    failed: AuroraError
    while True:
        try:
            await link.join(record())
        except UnreachableError as error:
            failed, wait = error, pause
        except RefusedError as error:
            if error.retry_seconds <= 0:
                raise
            failed, wait = error, max(pause, min(error.retry_seconds, LONGEST_REFUSAL_SECONDS))
        else:
            return
        if str(failed) != told:
            told = str(failed)
            text = f"{told}; {failed.hint}; trying again until it succeeds (Ctrl-C ends it)"
            output.event("waiting", text, detail=told)
        await trio.sleep(wait)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
