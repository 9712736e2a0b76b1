"""Screens in a terminal: a frozen snapshot goes through a pure render to lines; a driver owns the terminal.

figures.py    sizes, rates, ages, sparklines, segment maps: text (re-exported here; loads neither rich nor trio)
panels.py     sections of lines, arranged in columns of a given width and height (rich)
terminal.py   the terminal's modes: alternate screen, keys, what is restored when
driver.py     run_screen and run_plain: snapshot -> render -> terminal, keys -> actions (trio)
"""

from aurora_p2p.local.screen.figures import (
    age,
    count,
    coverage,
    rate,
    segment_bar,
    segment_map,
    share,
    short,
    size,
    sparkline,
)

__all__ = ["age", "count", "coverage", "rate", "segment_bar", "segment_map", "share", "short", "size", "sparkline"]
