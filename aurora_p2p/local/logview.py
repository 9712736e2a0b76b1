"""Reading a log back: the newest lines over rotated files, for a person or a script, and what is added to it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from aurora_p2p.local.log import LOG_FILES
from aurora_p2p.local.output import clean

POLL_SECONDS = 0.3
MAX_LINE = 1 << 20
"""A longer line is not one of ours."""
FIELDS_SHOWN = 300
_NOT_FIELDS = ("time", "boottime", "event", "text", "traceback")
"""Shown elsewhere in the line, or, as a traceback has many lines, with --json only."""


def files_of(path: Path) -> list[Path]:
    """The files of a rotated log that exist, oldest first."""
    numbered = [path.with_name(f"{path.name}.{number}") for number in range(LOG_FILES, 0, -1)]
    return [file for file in [*numbered, path] if file.is_file()]


def log_end(path: Path) -> int:
    """Bytes in the newest file; 0 when there is none. Where `newest_lines` ends and `follow` begins."""
    return path.stat().st_size if path.exists() else 0


def newest_lines(path: Path, count: int, end: int) -> list[str]:
    """The last `count` lines of a log before byte `end` of its newest file, oldest first. Raises OSError."""
    kept: list[str] = []
    for file in reversed(files_of(path)):
        with file.open("rb") as opened:
            raw = opened.read(end) if file == path else opened.read()
        lines = raw.decode(errors="replace").removesuffix("\n").split("\n") if raw else []
        kept = lines[max(len(lines) - (count - len(kept)), 0) :] + kept
        if len(kept) >= count:
            break
    return kept


def follow(path: Path, start: int) -> Iterator[str]:
    """Lines from byte `start` of the newest file on, without end; goes on in the next file when it is rotated."""
    while True:
        try:
            with path.open("rb") as file:
                file.seek(start)
                yield from _lines_until_rotated(file, path)
            start = 0
        except FileNotFoundError:  # not begun, or just renamed
            time.sleep(POLL_SECONDS)


def _lines_until_rotated(file: BinaryIO, path: Path) -> Iterator[str]:
    """Whole lines of an open log, waiting for more until another file has its name and nothing is left in this one."""
    own, rest = os.fstat(file.fileno()).st_ino, b""
    while True:
        rotated = _inode(path) != own  # looked up before the read: nothing is written into this file after it
        chunk = file.read(MAX_LINE)
        if chunk:
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
            rest = rest[:MAX_LINE]
        elif rotated:
            return
        else:
            time.sleep(POLL_SECONDS)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def render_line(line: str) -> str:
    """A log line for a terminal: local time, event, text, then the fields; a line that is none of ours as it is."""
    try:
        record = json.loads(line)
        at = datetime.fromisoformat(record["time"]).astimezone()
        event, text = str(record["event"]), str(record.get("text", ""))
    except (ValueError, KeyError, TypeError, RecursionError):
        return clean(line)
    fields = " ".join(f"{key}={_short(value)}" for key, value in record.items() if key not in _NOT_FIELDS)
    shown = clean(f"{text}  {fields}" if text else fields, FIELDS_SHOWN)
    return f"{at:%Y-%m-%d %H:%M:%S}  {clean(event):<12} {shown}".rstrip()


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
