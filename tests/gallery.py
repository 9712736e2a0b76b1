"""Screens as committed text files: what a program's screen shows of each of some states.

A gallery is a module of states (tests/host/screens.py, tests/node/screens.py) with a folder beside it; run as
`python -m <module> --write` it writes the files anew, and the tests of the screen compare with them.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from aurora_p2p.local.screen.driver import frame_lines

Status = dict[str, Any]


@dataclass(frozen=True)
class Gallery:
    """module: its name; states: functions that make a status; the rest is the program's own."""

    module: str
    states: Sequence[Callable[[], Status]]
    sizes: Sequence[tuple[int, int]]
    render: Callable[[Status, int, int], Any]
    plain: Callable[[Status], str]
    why: Callable[[Status], list[str]]

    @property
    def folder(self) -> Path:
        return Path(__file__).parents[1].joinpath(*self.module.split("."))

    def file_of(self, state: Callable[[], Status]) -> Path:
        return self.folder / f"{state.__name__}.txt"

    def drawn(self, status: Status, width: int, height: int) -> list[str]:
        return frame_lines(self.render(status, width, height), width, height, colour=False)

    def shown(self, state: Callable[[], Status]) -> str:
        """The text file of one state: every size, the plain line, and the answer to `why`."""
        status = state()
        before = copy.deepcopy(status)
        parts = []
        for width, height in self.sizes:
            parts += [f"==== {width} x {height}", *(line.rstrip() for line in self.drawn(status, width, height))]
        parts += ["==== plain", self.plain(status), "==== why", *self.why(status), ""]
        assert status == before, "a render must not change its snapshot"
        return "\n".join(parts)

    def write(self) -> None:
        """The module's command line."""
        if sys.argv[1:] != ["--write"]:
            raise SystemExit(f"usage: python -m {self.module} --write")
        self.folder.mkdir(exist_ok=True)
        for state in self.states:
            self.file_of(state).write_text(self.shown(state), encoding="utf-8")

    # ---- what every screen promises

    def check_looks(self, state: Callable[[], Status]) -> None:
        """It looks as was agreed, and no file is left of a state that is gone."""
        assert self.shown(state) == self.file_of(state).read_text(encoding="utf-8")
        assert {path.stem for path in self.folder.glob("*.txt")} == {each.__name__ for each in self.states}

    def check_size(self, state: Callable[[], Status], width: int) -> None:
        """It is exactly as large as the terminal."""
        for height in (10, 24, 61):
            lines = self.drawn(state(), width, height)
            assert len(lines) == height
            assert max(cell_len(text) for text in lines) <= width

    def check_colour(self, state: Callable[[], Status]) -> None:
        """Colour adds nothing but colour."""
        coloured = frame_lines(self.render(state(), 120, 40), 120, 40)
        bare = [re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip() for text in coloured]
        assert bare == [text.rstrip() for text in self.drawn(state(), 120, 40)]
