"""A support bundle: what somebody who helps needs to see, in one small archive without secrets.

    README.txt          what is inside and what was taken out
    about.json          program, time, Python, packages, system, processor, memory, GPUs
    status.json         the daemon's status, or why there is none
    why.txt             what it waits for, in sentences
    settings.toml       the settings file
    where.json          every place of the home with its size; the disk's figures
    databases.json      schema versions and row counts, never a row
    logs/*              the last LOG_KEPT bytes of each log

Only these are read. Every member passes `Scrubber`: tickets, key files, values named like secrets, the very keys and
database secrets of this home wherever they occur in whatever spelling, and the names of the home and user folders.
Addresses of peers stay: most questions are about them. At most MAX_MEMBER bytes a member; members in fixed order with
fixed times, so that the same state gives the same archive.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import sqlite3
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aurora_p2p.errors import StoreError
from aurora_p2p.local.log import FOLDER
from aurora_p2p.local.logview import files_of
from aurora_p2p.local.redact import HIDDEN, redact, redact_value

LOG_KEPT = 2 << 20
CHILD_LOG_KEPT = 1 << 19
"""The last hours of a node and the last words of its children: more than anybody reads, small enough to send."""
MAX_MEMBER = 4 << 20
MIN_SECRET = 8
"""Bytes: what is shorter would hide half the text."""
README = """\
Made by `{program} support-bundle`. Read it before you send it: tar -xzf FILE; every member is plain text.

Inside: status, settings, versions, sizes, row counts, the ends of the logs. Addresses and ids of peers are in there.
Taken out: keys, seeds, tickets, the run's secret, and the names of the home and user folders. Never read: weights,
prompts and completions.
"""


class Scrubber:
    """Takes secrets out of texts. home: its keys and databases are looked into for what must not appear."""

    def __init__(self, home: Path) -> None:
        spelled: set[str] = set()
        for secret in known_secrets(home):
            spelled |= spellings(secret)
        self._hidden = sorted(spelled, key=len, reverse=True)
        folders = {str(home): "<home>", str(home.resolve()): "<home>", str(Path.home()): "~"}
        self._folders = [(_whole(name), shown) for name, shown in folders.items() if len(name) > 1]

    def text(self, text: str) -> str:
        for secret in self._hidden:
            text = text.replace(secret, HIDDEN)
        for name, shown in self._folders:
            text = name.sub(shown, text)
        return redact(text)

    def lines(self, raw: bytes) -> str:
        """A log. JSON is gone through value by value as well, for an escaped text hides what it says."""
        return "".join(f"{self._line(line)}\n" for line in raw.decode(errors="replace").splitlines())

    def _line(self, line: str) -> str:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return self.text(line)
        return self.text(json.dumps(redact_value(record, redact=self.text)))

    def table(self, value: Any) -> str:
        return self.text(json.dumps(redact_value(value, redact=self.text), indent=1, sort_keys=True)) + "\n"


def _whole(folder: str) -> re.Pattern[str]:
    """The name of a folder as itself or the start of a path: /root, /root/x, but not the end of <home>/root.key."""
    return re.compile(rf"(?<![\w>~-]){re.escape(folder)}(?![\w-]|\.\w)")


def known_secrets(home: Path) -> Iterable[bytes]:
    """The seeds of the key files and the secrets of the databases below `home`."""
    for path in sorted(home.rglob("*.key")):
        words = _read(path, 1 << 16).split()
        yield from (word for word in words if len(word) >= 32)
        yield from (bytes.fromhex(word.decode()) for word in words if len(word) == 64 and _is_hex(word))
    for path in sorted(home.glob("*.sqlite")):
        yield from _database_secrets(path)


def _is_hex(word: bytes) -> bool:
    return all(letter in b"0123456789abcdefABCDEF" for letter in word)


def _database_secrets(path: Path) -> list[bytes]:
    try:
        with _open(path) as db:
            return [row[0] for row in db.execute("SELECT secret FROM meta") if isinstance(row[0], bytes)]
    except sqlite3.Error:
        return []


def spellings(secret: bytes) -> set[str]:
    """The ways in which bytes appear in a text."""
    if len(secret) < MIN_SECRET:
        return set()
    plain = base64.b64encode(secret).decode()
    spelled = {secret.hex(), secret.hex().upper(), plain, plain.rstrip("="), repr(secret)[2:-1]}
    spelled |= {base64.urlsafe_b64encode(secret).decode().rstrip("="), base64.b32encode(secret).decode().rstrip("=")}
    spelled.add(str(list(secret)))
    if secret.isascii():
        spelled.add(secret.decode())
    return spelled


def log_members(home: Path, program: str, child_logs: Sequence[str], scrub: Scrubber) -> dict[str, str]:
    """The ends of the logs, by their name in the bundle."""
    members, left = {}, LOG_KEPT
    for path in reversed(files_of(home / FOLDER / f"{program}.log")):
        members[f"logs/{path.name}"] = scrub.lines(_tail(path, left))
        left = max(left - path.stat().st_size, 0)
    for name in child_logs:
        if (home / name).is_file():
            members[f"logs/{name}"] = scrub.lines(_tail(home / name, CHILD_LOG_KEPT))
    return members


def database_figures(home: Path, patterns: Sequence[str], *, running: bool) -> dict[str, Any]:
    """Schema version and row counts of each SQLite file, read without a lock; none while its daemon writes."""
    found: dict[str, Any] = {}
    for path in sorted(path for pattern in patterns for path in home.glob(pattern)):
        name = str(path.relative_to(home))
        found[name] = "in use by the daemon: see status.json" if running else _figures(path)
    return found


def _figures(path: Path) -> dict[str, Any]:
    try:
        with _open(path) as db:
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            rows = {name: db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in sorted(tables)}  # noqa: S608
            return {"schema": db.execute("PRAGMA user_version").fetchone()[0], "rows": rows}
    except sqlite3.Error as error:
        return {"error": str(error)}


class _Open:
    def __init__(self, path: Path) -> None:
        # immutable: no lock is taken and no file made, so a daemon that starts meanwhile is not in anybody's way
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)

    def __enter__(self) -> sqlite3.Connection:
        return self._db

    def __exit__(self, *raised: object) -> None:
        self._db.close()


def _open(path: Path) -> _Open:
    return _Open(path)


def disk_figures(home: Path) -> dict[str, int]:
    """Bytes and inodes of the file system that holds `home`."""
    figures = os.statvfs(home)
    return {
        "size_bytes": figures.f_frsize * figures.f_blocks,
        "free_bytes": figures.f_frsize * figures.f_bavail,
        "free_inodes": figures.f_favail,
    }


def write_bundle(path: Path, members: Mapping[str, str]) -> int:
    """Write the archive, private, to a new file; its bytes. Raises StoreError."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(members):
            raw = members[name].encode()[-MAX_MEMBER:]
            entry = tarfile.TarInfo(f"aurora-support/{name}")
            entry.size, entry.mode = len(raw), 0o600
            archive.addfile(entry, io.BytesIO(raw))
    content = packed.getvalue()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", hint="choose another file with --output") from error
    return len(content)


def _tail(path: Path, nbytes: int) -> bytes:
    """The last bytes of a file, from the beginning of a line."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - nbytes, 0))
        raw = file.read(nbytes)
    return raw if nbytes >= size else raw[raw.find(b"\n") + 1 :]


def _read(path: Path, nbytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(nbytes)
    except OSError:
        return b""
