"""One SQLite file owned by one process: opened, locked, migrated; every failure is a StoreError of one line.

A full disk is a DiskFullError: nothing of the transaction is there, and the same transaction can be tried again.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from aurora_p2p.errors import DiskFullError, StoreError
from aurora_p2p.local.files import disk_error, sync_folder

_HINTS = {
    "database or disk is full": "free some disk space, then start again",
    "database is locked": "another process uses it: stop that one, or use another --home",
    "unable to open database file": "create the folder and make it writable",
    "attempt to write a readonly database": "make the file and its folder writable",
    "file is not a database": "restore it from your backup, or move it away",
    "database disk image is malformed": "restore it from your backup, or move it away",
}


@contextlib.contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """SQLite's and the system's failures, for a person."""
    try:
        yield
    except sqlite3.Error as error:
        full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        kind = DiskFullError if full else StoreError
        raise kind(f"{path}: {error}", hint=_HINTS.get(str(error), "")) from error
    except OSError as error:
        raise disk_error(f"{path}: {error.strerror}", error) from error


def open_database(path: Path, migrations: Migrations, schema: int) -> Database:
    """Open or create; WAL, synchronous=FULL, locked for this process until closed. Raises StoreError.

    schema: the number of the newest migration; a file with a higher one is refused.
    """
    with store_errors(path), contextlib.ExitStack() as undo:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        undo.callback(connection.close)
        db = Database(connection)
        # EXCLUSIVE before WAL: the lock is then held for good, and no shared-memory file is needed.
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            db.execute(f"PRAGMA {pragma}").fetchall()
        if db.execute("PRAGMA user_version").fetchone()[0] > schema:
            raise StoreError(f"{path} was written by a newer version", hint="update, or use another --home")
        migrations.apply(db)
        db.execute(f"PRAGMA user_version = {schema}")  # also the first write: now the lock is ours
        sync_folder(path.parent)
        undo.pop_all()
    return db
