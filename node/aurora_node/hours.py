"""When a machine works: windows of the week, in its owner's own time.

    "22:00-07:00"            every night; a window that ends before it begins passes midnight
    "Mon-Fri 18:00-08:00"    nights that begin on those days
    "Sat 00:00-24:00"        a whole day

No window at all means always. Pure: the time comes in as a datetime in the owner's zone. Where the zone changes its
offset, windows follow what the clock on the wall says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from aurora_p2p.errors import UsageError

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_MINUTES = 24 * 60
WEEK_MINUTES = 7 * DAY_MINUTES
MAX_WINDOWS = 64
"""More than anybody types; the machine looks through them every few seconds."""
_WINDOW = re.compile(r"(?:([A-Za-z]{3})(?:-([A-Za-z]{3}))? )?(\d\d):(\d\d)-(\d\d):(\d\d)")


@dataclass(frozen=True, slots=True)
class Hours:
    """Windows as [start, end) in minutes since Monday 00:00; an end past the week's goes on at its beginning."""

    windows: tuple[tuple[int, int], ...] = ()

    def open_at(self, local: datetime) -> bool:
        """Whether the machine may work then."""
        minute = _minute_of_week(local)
        return not self.windows or any(
            start <= minute < end or start <= minute + WEEK_MINUTES < end for start, end in self.windows
        )

    def next_change(self, local: datetime) -> datetime | None:
        """The first moment after `local` at which `open_at` differs from now; None when it never does."""
        now, minute = self.open_at(local), _minute_of_week(local)
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
        monday = midnight - timedelta(days=local.weekday())
        edges = {edge % WEEK_MINUTES for window in self.windows for edge in window}
        for ahead in sorted((edge - minute - 1) % WEEK_MINUTES + 1 for edge in edges):
            days, rest = divmod(minute + ahead, DAY_MINUTES)
            then = (monday + timedelta(days=days)).replace(hour=rest // 60, minute=rest % 60)
            if self.open_at(then) != now:
                return then
        return None


def parse_hours(texts: Sequence[str]) -> Hours:
    """Windows as typed in node.toml. Raises UsageError that names the one it cannot read."""
    if len(texts) > MAX_WINDOWS:
        raise UsageError(f"hours has {len(texts)} windows, at most {MAX_WINDOWS} are read")
    return Hours(tuple(window for text in texts for window in _windows(text)))


def _windows(text: str) -> list[tuple[int, int]]:
    found = _WINDOW.fullmatch(text.strip())
    if found is None:
        raise _unreadable(text)
    first, last, *clock = found.groups()
    start, end = (int(clock[0]) * 60 + int(clock[1]), int(clock[2]) * 60 + int(clock[3]))
    if start >= DAY_MINUTES or end > DAY_MINUTES or int(clock[1]) > 59 or int(clock[3]) > 59:
        raise _unreadable(text)
    length = end - start if end > start else end - start + DAY_MINUTES
    return [(day * DAY_MINUTES + start, day * DAY_MINUTES + start + length) for day in _days(text, first, last)]


def _days(text: str, first: str | None, last: str | None) -> list[int]:
    if first is None:
        return list(range(7))
    try:
        begin = DAYS.index(first.capitalize())
        end = DAYS.index((last or first).capitalize())
    except ValueError:
        raise _unreadable(text) from None
    return [(begin + step) % 7 for step in range((end - begin) % 7 + 1)]


def _unreadable(text: str) -> UsageError:
    return UsageError(
        f"hours: {text[:60]!r} is no window of the week", hint='write "22:00-07:00" or "Mon-Fri 18:00-08:00"'
    )


def _minute_of_week(local: datetime) -> int:
    return local.weekday() * DAY_MINUTES + local.hour * 60 + local.minute
