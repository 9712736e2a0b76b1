"""What a program keeps on this machine: each place with its size, and whether the daemon runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aurora_p2p.local.control import daemon_pid, socket_path

BLOCK = 512
"""st_blocks counts these whatever the file system's own block is."""


@dataclass(frozen=True, slots=True)
class Place:
    """One file or folder of a home. `what`: what it is for, in a few words."""

    name: str
    path: Path
    what: str


def disk_bytes(path: Path) -> int:
    """Bytes that a file or a folder takes on the disk; links are not followed, what cannot be read counts 0."""
    try:
        total = os.lstat(path).st_blocks * BLOCK
    except OSError:
        return 0
    folders = [path] if path.is_dir() and not path.is_symlink() else []
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    total += _entry_bytes(entry, folders)
        except OSError:
            continue
    return total


def _entry_bytes(entry: os.DirEntry[str], folders: list[Path]) -> int:
    try:
        if entry.is_dir(follow_symlinks=False):
            folders.append(Path(entry.path))
        return entry.stat(follow_symlinks=False).st_blocks * BLOCK
    except OSError:
        return 0


def running_pid(home: Path) -> int | None:
    """The daemon of this home, or None."""
    return daemon_pid(socket_path(home, "control"))


def survey(home: Path, places: Iterable[Place]) -> dict[str, Any]:
    """Plain values: what `where --json` prints."""
    listed = [
        {"name": place.name, "path": str(place.path), "what": place.what, "exists": os.path.lexists(place.path),
         "bytes": disk_bytes(place.path)}
        for place in places
    ]  # fmt: skip
    return {
        "home": str(home),
        "exists": home.is_dir(),
        "pid": running_pid(home),
        "bytes": disk_bytes(home),
        "places": listed,
    }


def render_survey(surveyed: Mapping[str, Any]) -> str:
    """One line per place: size, path, what it is."""
    from aurora_p2p.local.screen import size

    pid = surveyed["pid"]
    lines = [
        f"home     {surveyed['home']}" + ("" if surveyed["exists"] else "  (not there yet)"),
        f"daemon   {f'runs as process {pid}' if pid else 'does not run'}",
        f"disk     {size(surveyed['bytes'])}",
        "",
    ]
    for place in surveyed["places"]:
        shown = size(place["bytes"]) if place["exists"] else "-"
        lines.append(f"{shown:>9}  {place['path']}\n{'':>11}{place['what']}")
    return "\n".join(lines)
