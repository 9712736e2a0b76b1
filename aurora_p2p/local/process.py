"""What a daemon can say of itself: memory, descriptors, tasks, disk, and how late its event loop runs.

Plain values for a status. The figures of a child process are not among them: whoever holds its pid can read them.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from pathlib import Path
from typing import Any

import trio

from aurora_p2p.local.clock import boottime

LOOK_SECONDS = 0.5
"""Between two looks at the event loop."""
KEPT_LOOKS = 120
"""A minute of them: the longest delay of a minute is what starves a 10 s negotiation."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process_status() -> dict[str, int]:
    """This process: `rss` bytes of memory, open `fds`, living trio `tasks`. Call inside trio."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {
        "rss": pages * _PAGE_BYTES,
        "fds": len(os.listdir("/proc/self/fd")) - 1,  # the listing itself holds one
        "tasks": trio.lowlevel.current_statistics().tasks_living,
    }


def disk_status(root: Path, used: int, quota: int) -> dict[str, int]:
    """Bytes: `used` of `quota`, and what the disk of `root` has free (0 when it cannot be asked)."""
    try:
        free = shutil.disk_usage(root).free
    except OSError:
        free = 0
    return {"used": used, "quota": quota, "free": free}


class LoopLag:
    """How much later than asked the event loop wakes a task. Run one `run`."""

    def __init__(self) -> None:
        self._late: deque[float] = deque(maxlen=KEPT_LOOKS)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            due = boottime() + LOOK_SECONDS
            await trio.sleep(LOOK_SECONDS)
            self._late.append(max(boottime() - due, 0.0))

    def status(self) -> dict[str, Any]:
        """Seconds: the last delay, and the longest of the last minute."""
        return {"last_seconds": self._late[-1] if self._late else 0.0, "max_seconds": max(self._late, default=0.0)}
