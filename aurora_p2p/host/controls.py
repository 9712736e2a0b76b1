"""What the owner may ask of a running host: over the control socket, or by a key of its screen.

    status, why, caps       look, explain, change the bandwidth
    pause, resume           no new leases are granted; results and publications go on
    quit, and SIGTERM       RUNNING -> DRAINING (no new leases; until the live ones end, or DRAIN_SECONDS) -> stop
                            asked again, or with "now": stop at once

What is changed here lasts until the host stops; run.toml is the lasting place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from aurora_p2p.host.answers import Answers, PoolDoor
from aurora_p2p.host.config import DRAIN_SECONDS
from aurora_p2p.host.why import why
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.control import Handler
from aurora_p2p.local.output import Output
from aurora_p2p.net.drive import ExchangeDriver


class Controls:
    """status: takes the host's snapshot."""

    def __init__(
        self,
        answers: Answers,
        pool: PoolDoor,
        driver: ExchangeDriver,
        output: Output,
        status: Callable[[], dict[str, Any]],
    ) -> None:
        self._answers, self._pool, self._driver, self._output, self._status = answers, pool, driver, output, status
        self._quit, self._now = trio.Event(), trio.Event()

    def commands(self) -> dict[str, Handler]:
        """The control socket's commands."""
        return {
            "status": self.status,
            "why": self._why,
            "caps": self._caps,
            "pause": self._pause,
            "resume": self._resume,
            "quit": self._stop,
        }

    async def wait_until_drained(self) -> None:
        """Return when the owner asked the host to quit and nothing has to be waited for any more."""
        await self._quit.wait()
        give_up = boottime() + DRAIN_SECONDS
        while self._pool.pool.book.live and boottime() < give_up and not self._now.is_set():
            await self._pool.wait_for_change(min(give_up - boottime(), 1.0))

    async def status(self, _request: object = None) -> Mapping[str, Any]:
        """The snapshot."""
        return self._status()

    async def _why(self, _request: object = None) -> Mapping[str, Any]:
        return {"why": why(self._status())}

    async def _caps(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._driver.change_caps(request.get("up_kib"), request.get("down_kib"))

    async def _pause(self, _request: object = None) -> Mapping[str, Any]:
        if not self._answers.paused:
            self._answers.paused = True
            self._output.event("paused", "paused: no leases are granted until `aurora-host resume`")
            self._pool.wake()
        return {"paused": True, "text": "paused until `aurora-host resume` or a restart: no new leases; results go on"}

    async def _resume(self, _request: object = None) -> Mapping[str, Any]:
        if self._answers.paused:
            self._answers.paused = False
            self._output.event("resumed", "resumed: leases are granted again")
        return {"paused": False, "text": "resumed: leases are granted again"}

    async def _stop(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.stop(now=bool(request.get("now")))

    def stop(self, *, now: bool = False) -> Mapping[str, Any]:
        """What `quit` and SIGTERM do: drain, or, when asked again or with `now`, wait for nothing."""
        live = len(self._pool.pool.book.live)
        if self._quit.is_set() or now:
            self._now.set()
        elif live:
            text = f"draining: no new leases; waits for {_leases(live)}, at most {DRAIN_SECONDS:.0f} s"
            self._output.event("draining", f"{text} (Ctrl-C or SIGTERM again: for nothing)", leases=live)
        self._answers.draining = True
        self._quit.set()
        self._pool.wake()
        waits = bool(live) and not self._now.is_set()
        text = f"draining: waits for {_leases(live)}, at most {DRAIN_SECONDS:.0f} s" if waits else "stopping"
        return {"draining": waits, "leases": live, "seconds": DRAIN_SECONDS if waits else 0.0, "text": text}


def _leases(count: int) -> str:
    return "1 live lease" if count == 1 else f"{count} live leases"
