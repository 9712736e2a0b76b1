"""Child processes of a daemon: started as `python -m MODULE --fd N`, spoken to over a socket pair.

A child inherits one descriptor and nothing else; it ends when that socket closes, so a killed parent leaves no orphan.
Children run at a higher nice value than the daemon: compute must not starve the control plane (libp2p's negotiation
timer is 10 s).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import psutil
import trio

from aurora_p2p.local.channel import Channel, TrioChannel

In = TypeVar("In")

STOP_SECONDS = 5.0
"""How long a child may take to end by itself after its socket closed, before SIGKILL."""


LOWEST_BEST_EFFORT = 7
"""ioprio_set(2): the last level of the class that ordinary programs are in."""
IoPriority = Literal["normal", "low", "idle"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How a child shares the machine with its owner's programs.

    nice: 0 to 19. memory_bytes: RLIMIT_DATA, which ends a child that allocates without end before it starves the
    machine; 0: none. Where the system has no such limit or priority, the child runs without.
    """

    nice: int = 0
    io_priority: IoPriority = "normal"
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Child(Generic[In]):
    process: trio.Process
    channel: TrioChannel[In]

    @property
    def pid(self) -> int:
        return self.process.pid


@asynccontextmanager
async def open_child(
    module: str,
    kind: type[In],
    *,
    log: Path | None = None,
    limits: Limits = Limits(),
    env: Mapping[str, str] | None = None,
    inherit: Collection[str] | None = None,
) -> AsyncIterator[Child[In]]:
    """Run `module` as a child. kind: the type of its messages. log: file that gets its stderr and stdout (appended).

    env: variables added to those inherited. inherit: the names that may be; None for all.
    On leaving, the socket is closed, then SIGTERM-free waiting of STOP_SECONDS, then SIGKILL.
    """
    kept = {name: value for name, value in os.environ.items() if inherit is None or name in inherit}
    ours, theirs = socket.socketpair()
    output = log.open("ab") if log else None
    try:
        process = await trio.lowlevel.open_process(
            ["nice", "-n", str(limits.nice), sys.executable, "-m", module, "--fd", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(theirs.fileno(),),
            env={**kept, **(env or {})},
            start_new_session=True,
        )
    finally:
        theirs.close()
        if output:
            output.close()
    _restrain(process.pid, limits)
    channel = TrioChannel(trio.SocketStream(trio.socket.from_stdlib_socket(ours)), kind)
    try:
        yield Child(process, channel)
    finally:
        with trio.CancelScope(shield=True):
            await channel.aclose()
            with trio.move_on_after(STOP_SECONDS):
                await process.wait()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL)
                await process.wait()


def _restrain(pid: int, limits: Limits) -> None:
    """From outside, before the child has begun: threads and children inherit it."""
    with contextlib.suppress(psutil.Error, OSError, AttributeError):  # gone already, or a system without the call
        process: Any = psutil.Process(pid)
        if limits.memory_bytes:
            process.rlimit(psutil.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))
        if limits.io_priority == "low":
            process.ionice(psutil.IOPRIO_CLASS_BE, LOWEST_BEST_EFFORT)
        elif limits.io_priority == "idle":
            process.ionice(psutil.IOPRIO_CLASS_IDLE)


def inherited_channel(kind: type[In], arguments: list[str] | None = None) -> Channel[In]:
    """The child's end: reads `--fd N` from the command line. Ctrl-C is left to the parent."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 2 or words[0] != "--fd" or not words[1].isdecimal():
        raise SystemExit("this module is started by its daemon, with --fd N")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Channel(socket.socket(fileno=int(words[1])), kind)
