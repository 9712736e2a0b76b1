"""What a daemon tells the person at the terminal, or a script.

    human    one line per event, and on a terminal a live progress line for what is in flight (rich)
    json     one JSON object per line on stdout: {"event": ..., "seconds": ..., ...}

Text that came from peers passes through `clean` first: no control characters, no markup reaches a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aurora_p2p.local.clock import boottime


def clean(text: str, limit: int = 200) -> str:
    """Printable characters only, cut to `limit`: safe to show whatever a peer sent."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:limit])


class Output:
    """Where a program's events go. `event` may be called from any task of one thread."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._start = boottime()
        self._progress: Any = None
        self._task: Any = None

    def event(self, name: str, text: str, **fields: Any) -> None:
        """Report one event: `text` for a person, `fields` for a script."""
        if self.as_json:
            record = {"event": name, "seconds": round(boottime() - self._start, 3), **fields}
            print(json.dumps(record), flush=True)
        elif self._progress is not None:
            self._progress.console.print(clean(text, 500), markup=False, highlight=False, soft_wrap=True)
        else:
            print(clean(text, 500), flush=True)

    @contextmanager
    def live(self) -> Iterator[Callable[[str, int, int], None]]:
        """A live progress line; the function yielded takes (description, done, total). Silent off a terminal."""
        if self.as_json or not sys.stdout.isatty():
            yield lambda description, done, total: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        with Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), transient=True
        ) as progress:
            self._progress, self._task = progress, progress.add_task("starting", total=1)
            try:
                yield self._show
            finally:
                self._progress = None

    def _show(self, description: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=clean(description), completed=done, total=max(total, 1))
