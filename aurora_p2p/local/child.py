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
from typing import Generic, TypeVar

import trio

from aurora_p2p.local.channel import Channel, TrioChannel

In = TypeVar("In")

STOP_SECONDS = 5.0
"""How long a child may take to end by itself after its socket closed, before SIGKILL."""


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
    nice: int = 0,
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
            ["nice", "-n", str(nice), sys.executable, "-m", module, "--fd", str(theirs.fileno())],
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


def inherited_channel(kind: type[In], arguments: list[str] | None = None) -> Channel[In]:
    """The child's end: reads `--fd N` from the command line. Ctrl-C is left to the parent."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 2 or words[0] != "--fd" or not words[1].isdecimal():
        raise SystemExit("this module is started by its daemon, with --fd N")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Channel(socket.socket(fileno=int(words[1])), kind)
