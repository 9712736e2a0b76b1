"""The log of a daemon: JSON lines in `home/logs`, private, bounded, without secrets.

    {"time": "2026-05-01T10:00:00.000+00:00", "boottime": 81.2, "event": "joined", "text": "...", "peer": "12D3..."}

`time` is the wall clock and may jump; `boottime` orders the lines of one boot. Lines of our own carry the run, step,
lease and peer they are about; warnings of libraries have the event "library" and the name of their logger. At most
LOG_BYTES * LOG_FILES are kept. A disk that takes no more costs lines, never the daemon.

The children's own output (bulk.log, engine.log) is for the day a child dies: `trim` keeps its last part.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import traceback
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aurora_p2p.errors import StoreError
from aurora_p2p.local.clock import boottime, wall
from aurora_p2p.local.redact import redact, redact_value

FOLDER = "logs"
LOG_BYTES = 8 << 20
"""One file: a few hours of a busy node, whose receipts are most of it; still opened by any editor."""
LOG_FILES = 5
"""Files kept, the newest included: about two days of a busy node, and 40 MiB at most."""
CHILD_LOG_BYTES = 4 << 20
CHILD_LOG_KEPT = 1 << 20
"""A child's output past the first size is cut to the second: a traceback and what led to it."""
MAX_TEXT = 4000
"""Characters of one text; a library's traceback is cut to its end."""


class EventLog:
    """An open log. `write` may be called from any thread."""

    def __init__(self, handler: _RotatingLog) -> None:
        self._handler = handler

    @classmethod
    def open(cls, path: Path) -> EventLog:
        """Append to `path` (0600, in a 0700 folder); library warnings of this process go there too until `close`.

        Raises StoreError when the file cannot be made.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handler = _RotatingLog(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1, encoding="utf-8")
        except OSError as error:
            raise StoreError(f"cannot write the log {path}: {error.strerror}") from error
        handler.setLevel(logging.WARNING)
        handler.setFormatter(_Lines())
        logging.getLogger().addHandler(handler)
        return cls(handler)

    @property
    def lost(self) -> int:
        """Lines that the disk did not take."""
        return self._handler.lost

    def write(self, event: str, text: str = "", **fields: Any) -> None:
        """One line. Fields are JSON values, ids as text; what looks like a secret is hidden."""
        own = {"event": event, "text": text, "fields": fields}
        self._handler.handle(logging.makeLogRecord({"levelno": logging.WARNING, "aurora": own}))

    def close(self) -> None:
        logging.getLogger().removeHandler(self._handler)
        self._handler.close()

    def __enter__(self) -> Self:
        self.write("started", pid=os.getpid())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.write("ended")
        else:
            causes = _causes(error)
            kinds = ", ".join(dict.fromkeys(type(cause).__name__ for cause in causes))
            self.write("ended", "; ".join(map(str, causes)), kind=kinds, traceback=_trace(error))
        self.close()


class _RotatingLog(RotatingFileHandler):
    """Private files, and no word on stderr when the disk is full."""

    lost = 0

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
        return TextIOWrapper(os.fdopen(descriptor, "ab"), encoding=self.encoding)

    def handleError(self, record: logging.LogRecord) -> None:
        self.lost += 1


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        own = getattr(record, "aurora", None)
        line = {"time": wall().isoformat(timespec="milliseconds"), "boottime": round(boottime(), 3)}
        line |= _own(own) if own is not None else _of_library(record)
        return json.dumps(line, ensure_ascii=True)


def _own(own: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = redact_value(own["fields"])
    return {"event": own["event"], "text": redact(own["text"])[:MAX_TEXT]} | fields


def _of_library(record: logging.LogRecord) -> dict[str, Any]:
    line = {"event": "library", "text": redact(record.getMessage())[:MAX_TEXT]}
    line |= {"logger": record.name, "level": record.levelname.lower()}
    if record.exc_info and record.exc_info[1] is not None:
        line["traceback"] = _trace(record.exc_info[1])
    return line


def _causes(error: BaseException) -> list[BaseException]:
    """The errors inside nurseries' groups."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for inner in error.exceptions for cause in _causes(inner)]
    return [error]


def _trace(error: BaseException) -> str:
    return redact("".join(traceback.format_exception(error)))[-MAX_TEXT:]


def log_path(home: Path, program: str) -> Path:
    """The newest file of a program's log ("node", "host", "bootstrap"); older ones end in .1, .2, ..."""
    return home / FOLDER / f"{program}.log"


def trim(path: Path) -> None:
    """Cut a child's output to its last part, in place, when it has grown too long; a missing file is left missing.

    The child appends (O_APPEND), so it goes on at the new end. What it writes in the same millisecond may be lost.
    """
    with contextlib.suppress(OSError):  # a log that cannot be cut is no reason to stop
        if path.stat().st_size <= CHILD_LOG_BYTES:
            return
        with path.open("r+b") as file:
            file.seek(-CHILD_LOG_KEPT, os.SEEK_END)
            kept = file.read(CHILD_LOG_KEPT)
            file.truncate(0)
        with path.open("ab") as file:
            file.write(kept[kept.find(b"\n") + 1 :])
