"""The one clock of every machine: CLOCK_BOOTTIME, which also counts while a laptop sleeps."""

from __future__ import annotations

import time


def boottime() -> float:
    """Seconds since boot, suspend included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
