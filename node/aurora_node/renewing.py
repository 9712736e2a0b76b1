"""Keeping a lease while it is worked on: one sample may take longer than a lease lasts.

WORKING --two thirds of the time are over--> ASKING --renewed--> WORKING, the time begins anew with the request
                                               |--no answer--> asked again until the deadline
                                               \\--refused, or over the owner's limit--> the deadline stays
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from aurora_p2p.errors import AuroraError
from aurora_p2p.local.clock import boottime
from aurora_p2p.wire.control import Lease, Renew

RENEW_AT = 2 / 3
"""Of a lease's time: the rest is for a host that is slow to answer."""
RENEW_SECONDS = 15.0
"""Longest wait for an answer."""
RETRY_SECONDS = 1.0


class Renewer(Protocol):
    async def renew(self, renew: Renew, seconds: float) -> float | None:
        """The time that the lease has from the request on; None when it is not renewed. Raises AuroraError."""


async def keep_renewed(
    host: Renewer, lease: Lease, asked: float, longest: float, extend: Callable[[float], None]
) -> None:
    """Until the host renews no more, or the lease would last longer than `longest` seconds, its owner's limit.

    asked: when the lease was asked for. extend: told each new deadline. Times are CLOCK_BOOTTIME.
    """
    began, seconds = asked, lease.seconds
    while True:
        await trio.sleep(max(began + RENEW_AT * seconds - boottime(), 0.0))
        sent = boottime()
        if sent + lease.seconds - asked > longest:
            return
        try:
            renewed = await host.renew(Renew(lease.lease, lease.fencing), RENEW_SECONDS)
        except AuroraError:
            await trio.sleep(RETRY_SECONDS)
            continue
        if renewed is None:
            return
        began, seconds = sent, min(renewed, longest - (sent - asked))
        extend(began + seconds)


async def beside(task: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` with `task` beside it, which ends with it. What `work` raises comes out as it is."""
    raised: AuroraError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task)
        try:
            await work()
        except AuroraError as error:
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised
