"""The daemon's end of the bulk child: starts it, commands it, hands on its events, starts another when it dies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import trio

from aurora_p2p.errors import ChildError, PortInUseError, UsageError
from aurora_p2p.local.child import Child, Limits, open_child
from aurora_p2p.net.backlog import Backlog
from aurora_p2p.wire.bulk import BulkCommand, BulkEvent, BulkStart, Listening, SetRates, StartFailed

MAX_COMMANDS = 1024
"""Commands waiting for the child: it takes them as fast as they come unless it is dying."""
BATCH = 64
"""Commands of one write."""
START_SECONDS = 30.0
RESTART_SECONDS = 1.0
MODULE = "aurora_p2p.net.bulk"


class DataPlane:
    """`commands` in; events to `arrived`, one at a time; `lost` when a child has died, `begun` when one listens."""

    def __init__(self, start: BulkStart, log: Path | None, limits: Limits) -> None:
        self.start, self.restarts, self._limits = start, 0, limits
        self.commands: Backlog[BulkCommand] = Backlog(MAX_COMMANDS)
        self.listening = trio.Event()
        """Set once the first child listens; `start.listen_port` is its port then."""
        self._log = log
        self.pid = 0
        """Of the child; 0 while there is none."""

    def set_rates(self, up_rate: int, down_rate: int) -> None:
        self.start = msgspec.structs.replace(self.start, up_rate=up_rate, down_rate=down_rate)
        self.commands.put(SetRates(up_rate, down_rate))

    async def run(
        self,
        arrived: Callable[[BulkEvent], Awaitable[None]],
        begun: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        """One child after the other, for ever. Raises PortInUseError, UsageError or ChildError when none starts."""
        while True:
            child: Child[BulkEvent]
            async with open_child(MODULE, BulkEvent, log=self._log, limits=self._limits) as child:  # type: ignore[arg-type]
                await self._begin(child)
                self.commands.clear()
                self.pid = child.pid
                begun()
                self.listening.set()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, child, nursery.cancel_scope)
                    nursery.start_soon(self._read, child, arrived, nursery.cancel_scope)
            self.pid = 0
            self.restarts += 1
            lost()
            await trio.sleep(RESTART_SECONDS)

    async def _begin(self, child: Child[BulkEvent]) -> None:
        answer: BulkEvent | None = None
        try:
            with trio.move_on_after(START_SECONDS):
                await child.channel.send(self.start)
                answer, _ = await child.channel.receive()
        except EOFError:
            answer = None
        where = f"{self.start.listen_host}:{self.start.listen_port}"
        match answer:
            case Listening(port):
                self.start = msgspec.structs.replace(self.start, listen_port=port)
            case StartFailed(True):
                raise PortInUseError(f"another program listens on {where}", hint="choose another bulk_listen")
            case StartFailed(_, detail):
                raise UsageError(f"cannot listen on {where}: {detail}", hint="choose another bulk_listen")
            case _:
                raise ChildError("the bulk process did not start", hint="its messages are in bulk.log")

    async def _write(self, child: Child[BulkEvent], stop: trio.CancelScope) -> None:
        try:
            while True:
                await child.channel.send_batch(await self.commands.take(BATCH))
        except EOFError:
            stop.cancel()

    async def _read(
        self, child: Child[BulkEvent], arrived: Callable[[BulkEvent], Awaitable[None]], stop: trio.CancelScope
    ) -> None:
        try:
            while True:
                event, _ = await child.channel.receive()
                await arrived(event)
        except EOFError:
            stop.cancel()
