"""A ledger, read: what it holds, for people and scripts. The file itself is never written to.

The host that runs holds its ledger locked, so what is read is a copy, in a temporary folder. The copy is one moment of
the ledger: SQLite moves pages from the write-ahead log into the file at any time, yet starts the log anew only with
another header. So the file is copied first, then the log, and both again if the log's header is another by then.

    with open_copy(path) as reading:
        reading.summary()       counts
        reading.entries()       every row, one dict each

Values are plain: ids are hex, or peer ids. Nothing that is secret is in them.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from aurora_p2p.errors import StoreError
from aurora_p2p.lease.events import LeaseGranted
from aurora_p2p.store.database import store_errors
from aurora_p2p.store.schema import MAX_STEP_BYTES, SCHEMA
from aurora_p2p.types import RunId
from aurora_p2p.wire.codec import decode
from aurora_p2p.wire.control import SampleResult
from aurora_p2p.wire.signed import Signed
from aurora_p2p.wire.trainer import SubmitPrompts

WAL_HEADER = 32
"""Bytes, with the two salts that change whenever the log starts anew (SQLite's file format, section 4.1)."""
COPIES = 5
"""Attempts: a log starts anew after about 1,000 pages, a copy takes a fraction of the time those take."""

Entry = dict[str, Any]


@contextmanager
def open_copy(path: Path) -> Iterator[Reading]:
    """The ledger at `path` as it is now. Raises StoreError when there is none, or it is another program's file."""
    if not path.is_file():
        raise StoreError(f"{path} does not exist", hint="a host makes it when it first runs; is --home right?")
    with store_errors(path), tempfile.TemporaryDirectory(prefix="aurora-ledger-") as folder:
        copy = _copy(path, Path(folder) / path.name)
        with closing(sqlite3.connect(copy)) as connection:
            reading = Reading(Database(connection))
            reading.check_kind(path)
            yield reading


def _copy(path: Path, target: Path) -> Path:
    log = path.with_name(f"{path.name}-wal")
    for _ in range(COPIES):
        before = _header(log)
        shutil.copyfile(path, target)
        if log.exists():
            shutil.copyfile(log, target.with_name(f"{target.name}-wal"))
        if _header(log) == before:
            return target
    raise StoreError(f"{path} changes faster than it can be copied", hint="try again, or pause the host meanwhile")


def _header(log: Path) -> bytes:
    if not log.exists():
        return b""
    with log.open("rb") as file:
        return file.read(WAL_HEADER)


class Reading:
    """One moment of a ledger."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def check_kind(self, path: Path) -> None:
        """Raise StoreError when the file is no ledger, or a newer program's."""
        version = self.db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA:
            raise StoreError(f"{path} was written by a newer version", hint="update this program")
        if "meta" not in self.db.table_names() or "samples" not in self.db.table_names():
            raise StoreError(f"{path} is no host's ledger")

    @property
    def run(self) -> RunId:
        return RunId(self.db.execute("SELECT run FROM meta").fetchone()[0])

    def summary(self) -> Entry:
        """Counts of everything, by state, step, node and reason."""
        run, epoch, generation = self.db.execute("SELECT run, epoch, generation FROM meta").fetchone()
        highest = "SELECT max(seq, (SELECT coalesce(max(seq), 0) FROM publications)) FROM meta"
        newest = "SELECT max(version) FROM publications WHERE state = 'complete'"
        return {
            "run": run.hex(),
            "opened": epoch,
            "generation": generation,
            "highest_seq": self.db.execute(highest).fetchone()[0],
            "newest_version": self.db.execute(newest).fetchone()[0],
            "publications": self._counts("SELECT state, count(*) FROM publications GROUP BY state"),
            "steps": [self._step(*row) for row in self.db.execute("SELECT step, submitted FROM steps ORDER BY step")],
            "live_leases": self.db.execute("SELECT count(*) FROM leases").fetchone()[0],
            "samples": self.db.execute("SELECT count(*) FROM samples").fetchone()[0],
            "by_node": self._counts("SELECT node, count(*) FROM samples GROUP BY node ORDER BY 2 DESC, node"),
            "refusals": self._counts("SELECT reason, count FROM refusals ORDER BY reason"),
        }

    def entries(self, step: int | None = None) -> Iterator[Entry]:
        """Every row: publications, steps, leases, samples, refusals. Of one step: without publications and refusals.

        Raises WireError when a row is torn.
        """
        if step is None:
            yield from self._publications()
        where, values = ("", ()) if step is None else (" WHERE step = ?", (step,))
        for (submitted,) in self.db.execute(f"SELECT submitted FROM steps{where} ORDER BY step", values):  # noqa: S608
            yield _step_entry(decode(submitted, SubmitPrompts, limit=MAX_STEP_BYTES))
        for (granted,) in self.db.execute(f"SELECT granted FROM leases{where} ORDER BY lease", values):  # noqa: S608
            yield _lease_entry(decode(granted, LeaseGranted))
        for (signed,) in self.db.execute(f"SELECT signed FROM samples{where} ORDER BY rowid", values):  # noqa: S608
            yield _sample_entry(decode(signed, Signed, limit=MAX_STEP_BYTES))
        if step is None:
            for reason, count in self.db.execute("SELECT reason, count FROM refusals ORDER BY reason"):
                yield {"kind": "refusal", "reason": reason, "count": count}

    def _publications(self) -> Iterator[Entry]:
        columns = "seq, version, state, artifact, manifest_hash, digest"
        for seq, version, state, *hashes in self.db.execute(f"SELECT {columns} FROM publications ORDER BY seq"):  # noqa: S608
            artifact, manifest_hash, digest = (value.hex() if value else None for value in hashes)
            yield {
                "kind": "publication",
                "seq": seq,
                "version": version,
                "state": state,
                "artifact": artifact,
                "manifest_hash": manifest_hash,
                "digest": digest,
            }

    def _step(self, step: int, submitted: bytes) -> Entry:
        prompts = decode(submitted, SubmitPrompts, limit=MAX_STEP_BYTES)
        admitted = self.db.execute("SELECT count(*) FROM samples WHERE step = ?", (step,)).fetchone()[0]
        total = len(prompts.prompts) * prompts.group
        return {"step": step, "prompts": len(prompts.prompts), "group": prompts.group, "samples": total} | {
            "admitted": admitted
        }

    def _counts(self, query: str) -> dict[str, int]:
        return dict(self.db.execute(query).fetchall())


def _step_entry(submitted: SubmitPrompts) -> Entry:
    return {
        "kind": "step",
        "step": submitted.step,
        "group": submitted.group,
        "prompts": [list(prompt) for prompt in submitted.prompts],
    }


def _lease_entry(granted: LeaseGranted) -> Entry:
    return {
        "kind": "lease",
        "lease": granted.lease.hex(),
        "node": granted.lessee,
        "step": granted.step,
        "version": granted.version,
        "fencing": granted.fencing,
        "seconds": granted.seconds,
        "samples": [[sample.prompt, sample.sample] for sample in granted.samples],
    }


def _sample_entry(signed: Signed) -> Entry:
    """A sample with its proof: `body` and `signature` are what the node signed, hex."""
    result = decode(signed.body, SampleResult)
    return {
        "kind": "sample",
        "step": result.target_step,
        "prompt": result.prompt,
        "sample": result.sample,
        "version": result.version,
        "node": signed.signer,
        "lease": result.lease.hex(),
        "finish": result.finish,
        "tokens": list(result.tokens),
        "logprobs": list(result.logprobs),
        "body": signed.body.hex(),
        "signature": signed.signature.hex(),
    }
