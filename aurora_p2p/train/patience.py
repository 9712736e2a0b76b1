"""How a training job meets a host that is away, or has no room on its disk: it says so, waits, and goes on by itself.

A host that starts again listens at the same socket and knows everything that it acknowledged. Every request of a
trainer may therefore be made twice: prompts that are the same are the same step, rollouts are read, a publication that
was cut off has been aborted, and one that was completed is recognised by its digest (publish.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aurora_p2p.errors import RefusedError, UnreachableError
from aurora_p2p.local.clock import boottime
from aurora_p2p.train.client import SwarmClient

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.25, 5.0
"""Between two attempts: doubled each time."""
AWAY_SECONDS = 3600.0
"""How long a job waits for its host before it gives up: whoever has to repair the host may be asleep for a while."""

Out = TypeVar("Out")
_log = logging.getLogger("aurora_p2p.train")


def insist(
    client: SwarmClient,
    work: Callable[[], Out],
    what: str,
    *,
    seconds: float = AWAY_SECONDS,
    sleep: Callable[[float], object] = time.sleep,
) -> Out:
    """The result of `work`, a request to the host that may be repeated; `what` names it in the log.

    While the host cannot be reached the client is reopened; while it names a time to retry (a full disk, another
    publication being given up) that is waited for. Raises the last UnreachableError or RefusedError after `seconds`,
    and at once a refusal that will not pass.
    """
    give_up, pause, said = boottime() + seconds, FIRST_PAUSE_SECONDS, ""
    lost = False
    while True:
        try:
            if lost:
                client.reopen()
                lost = False
            done = work()
        except UnreachableError as error:
            problem: UnreachableError | RefusedError = error
            lost, wait = True, pause
        except RefusedError as error:
            if error.retry_seconds <= 0:
                raise
            problem, wait = error, max(error.retry_seconds, pause)
        else:
            if said:
                _log.warning("%s: it goes on", what)
            return done
        if boottime() + wait > give_up:
            raise problem
        if str(problem) != said:
            said = str(problem)
            _log.warning("%s has to wait: %s%s", what, said, f" ({problem.hint})" if problem.hint else "")
        sleep(wait)
        pause = min(2 * pause, MAX_PAUSE_SECONDS)


def open_patiently(
    home_or_socket: Path, *, seconds: float = AWAY_SECONDS, sleep: Callable[[float], object] = time.sleep
) -> SwarmClient:
    """Connect to a host that may still be starting. Raises UnreachableError after `seconds`."""
    give_up, pause, said = boottime() + seconds, FIRST_PAUSE_SECONDS, False
    while True:
        try:
            return SwarmClient.open(home_or_socket)
        except UnreachableError as error:
            if boottime() + pause > give_up:
                raise
            if not said:
                _log.warning("the training has to wait: %s (%s)", error, error.hint)
            said = True
        sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_SECONDS)
