"""What a daemon tells the person at the terminal, or a script.

    human    one line per event, and on a terminal a live progress line for what is in flight (rich)
    json     one JSON object per line on stdout: {"event": ..., "seconds": ..., ...}
    log      every event and every note as a JSON line in home/logs (local/log.py), where one is open
    screen   inside `quiet()` nothing is printed: a screen owns the terminal and shows `tail`

Text that came from peers passes through `clean` first: no control characters, no markup reaches a terminal.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aurora_p2p.local.clock import boottime
from aurora_p2p.local.hangup import is_hangup, let_go_of_terminal

if TYPE_CHECKING:  # screens and commands clean texts and have no log
    from aurora_p2p.local.log import EventLog

TAIL = 200
"""Event texts kept in memory for screens: more lines than a terminal is high."""


def clean(text: str, limit: int = 200) -> str:
    """Printable characters only, cut to `limit`: safe to show whatever a peer sent."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:limit])


def say(line: str) -> None:
    """Print a line at once; a terminal that was closed takes it."""
    try:
        print(line, flush=True)
    except OSError as error:
        if not is_hangup(error):
            raise
        let_go_of_terminal()


class Output:
    """Where a program's events go. `event` and `note` may be called from any task of one thread.

    log: closed by its owner, after the last event.
    """

    def __init__(self, *, as_json: bool, log: EventLog | None = None) -> None:
        self.as_json = as_json
        self._log = log
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._quiet = False
        self._start = boottime()
        self._progress: Any = None
        self._task: Any = None

    def event(self, name: str, text: str, **fields: Any) -> None:
        """Report one event: `text` for a person, `fields` for a script, both for the log."""
        self._tail.append(clean(text, 500))
        if self._log is not None:
            self._log.write(name, text, **fields)
        if self._quiet:
            return
        if self.as_json:
            record = {"event": name, "seconds": round(boottime() - self._start, 3), **fields}
            say(json.dumps(record))
        elif self._progress is not None:
            self._progress.console.print(clean(text, 500), markup=False, highlight=False, soft_wrap=True)
        else:
            say(clean(text, 500))

    def note(self, name: str, **fields: Any) -> None:
        """Write one record to the log alone: leases, receipts, steps. run, step, lease and peer are ids as text."""
        if self._log is not None:
            self._log.write(name, **fields)

    def tail(self, count: int) -> list[str]:
        """The last `count` event texts, oldest first, safe for a terminal."""
        return list(self._tail)[-count:] if count > 0 else []

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """While a screen owns the terminal: events reach the log and the tail, library warnings only the log."""
        root = logging.getLogger()
        streams = [handler for handler in root.handlers if type(handler) is logging.StreamHandler]
        for handler in streams:
            root.removeHandler(handler)
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False
            for handler in streams:
                root.addHandler(handler)

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
