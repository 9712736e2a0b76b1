"""Figures for a person: sizes, rates, ages, sparklines and segment maps as short text. Pure; nothing here prints.

Sizes are decimal (1 kB is 1000 bytes), as transfer rates are. What is unknown is None and shows as "-".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from aurora_p2p.local.output import clean

UNKNOWN = "-"
_BARS = "▁▂▃▄▅▆▇█"
_FILLS = ((100, "█"), (67, "▓"), (34, "▒"), (1, "░"), (0, "·"))
"""Percent of a cell's segments that must be held, and its letter."""
_UNITS = ("", "k", "M", "G", "T", "P")
SHORT_PEER = 8
"""Last letters of a peer id: the first ones are the same in all Ed25519 ids."""


def count(number: float | None) -> str:
    """ "999", "1.2k", "34M": at most four characters and a sign."""
    scaled = _scaled(number)
    return UNKNOWN if scaled is None else f"{scaled[0]}{scaled[1]}"


def counted(number: int, noun: str) -> str:
    """ "0 peers", "1 peer", "1,200 peers"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(nbytes: float | None) -> str:
    """ "512 B", "1.2 MB"."""
    scaled = _scaled(nbytes)
    return UNKNOWN if scaled is None else f"{scaled[0]} {scaled[1]}B"


def rate(bytes_per_second: float | None) -> str:
    """ "0 B/s", "1.2 MB/s"."""
    return UNKNOWN if _scaled(bytes_per_second) is None else f"{size(bytes_per_second)}/s"


def age(seconds: float | None) -> str:
    """A duration in its two largest units: "0 s", "47 s", "3 min 20 s", "5 h 2 min", "9 d 1 h". "-" when unknown."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    whole = max(int(seconds), 0)
    for unit, name, below, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def share(part: float, whole: float) -> str:
    """ "40 %"; "100 %" only when nothing is missing."""
    if whole <= 0:
        return UNKNOWN
    return f"{min(max(math.floor(100 * part / whole), 0), 100)} %"


def short(peer: str) -> str:
    """The end of a peer id, safe to print."""
    return clean(peer[-SHORT_PEER:])


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The last `width` values as bars between zero and their maximum, oldest first; an unknown one is a blank."""
    shown = list(values)[-width:] if width > 0 else []
    top = max((value for value in shown if value is not None), default=0.0)
    return "".join(" " if value is None else _bar(value, top) for value in shown)


def coverage(have: int, total: int, cells: int) -> list[int]:
    """Percent held of each of at most `cells` equal stretches of a bit set: what a status keeps of a large one.

    100 only where every segment is held, 0 only where none is.
    """
    cells = max(min(cells, total), 0)
    bounds = [total * cell // cells for cell in range(cells + 1)] if cells else []
    counts = ((have >> first & ((1 << (last - first)) - 1)).bit_count() for first, last in pairwise(bounds))
    return [_percent(held, last - first) for held, (first, last) in zip(counts, pairwise(bounds), strict=True)]


def segment_bar(percents: Sequence[int], width: int) -> str:
    """A coverage stretched or shrunk to `width` letters; full blocks only where every segment is held."""
    if not percents or width <= 0:
        return ""
    columns = len(percents)
    stretches = [
        percents[columns * cell // width : max(columns * (cell + 1) // width, columns * cell // width + 1)]
        for cell in range(width)
    ]
    return "".join(_fill(_percent(sum(stretch), 100 * len(stretch))) for stretch in stretches)


def segment_map(have: int, total: int, width: int) -> str:
    """Which of `total` segments are held (bit i of `have`), one letter per stretch of equal length."""
    return segment_bar(coverage(have, total, width), width)


def _scaled(number: float | None) -> tuple[str, str] | None:
    if number is None or not math.isfinite(number):
        return None
    value, unit = abs(number), 0
    while value >= 999.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1000, unit + 1
    digits = 1 if unit and value < 9.95 else 0
    return f"{'-' if number < 0 and round(value, digits) else ''}{value:.{digits}f}", _UNITS[unit]


def _bar(value: float, top: float) -> str:
    level = round(len(_BARS) * value / top) - 1 if top > 0 else 0
    return _BARS[min(max(level, 0), len(_BARS) - 1)]


def _percent(part: int, whole: int) -> int:
    return max(100 * part // whole, 1 if part else 0)


def _fill(percent: int) -> str:
    return next(letter for least, letter in _FILLS if percent >= least)
