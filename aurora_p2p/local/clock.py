"""The two clocks of every program.

    boottime()   CLOCK_BOOTTIME, which also counts while a laptop sleeps: every deadline, age and duration
    wall()       the date, for logs and screens only: a machine whose date is wrong by a month works like any other

AURORA_WALL_OFFSET=<seconds> shifts `wall` alone: how the tests move a machine's date.
"""

from __future__ import annotations

import math
import os
import time
from datetime import UTC, datetime, timedelta

from aurora_p2p.errors import UsageError

OFFSET = "AURORA_WALL_OFFSET"
MAX_OFFSET_SECONDS = 10 * 366 * 86_400.0


def boottime() -> float:
    """Seconds since boot, suspend included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall() -> datetime:
    """The date and time of this machine, UTC. Raises UsageError when AURORA_WALL_OFFSET is no number of seconds."""
    return datetime.now(UTC) + wall_offset(os.environ.get(OFFSET, ""))


def wall_offset(text: str) -> timedelta:
    """What AURORA_WALL_OFFSET says; empty: nothing. Raises UsageError."""
    if not text:
        return timedelta()
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not abs(seconds) <= MAX_OFFSET_SECONDS:
        raise UsageError(f"{OFFSET}={text} is no number of seconds within ten years", hint=f"try {OFFSET}=-2592000")
    return timedelta(seconds=seconds)
