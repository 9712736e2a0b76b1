"""The tables of the ledger, and how each record becomes rows.

    meta          one row: the run, its secret, how often it was opened, the highest generation and seq ever seen
    publications  every seq ever reserved, and how far it got: reserved -> open -> complete | aborted; never deleted
    steps         prompts submitted and not forgotten
    leases        live leases only
    samples       admitted samples of those steps: UNIQUE(run, step, prompt, sample) is the last line of exactly-once
    refusals      how many results were refused, by reason

Values that are only read back whole are kept in their wire encoding.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from aurora_p2p.lease.events import (
    LeaseClosed,
    LeaseGranted,
    PoolRecord,
    ResultRefused,
    SampleAdmitted,
    StepForgotten,
    VersionPublished,
)
from aurora_p2p.types import ArtifactId, Generation, ManifestHash, Record, RunId, Seq, StateDigest, Version
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.control import Reason, SampleResult
from aurora_p2p.wire.signed import Signed
from aurora_p2p.wire.trainer import SubmitPrompts

MAX_STEP_BYTES = 1 << 30
"""One step's prompts, encoded: written by this program, so the bound only guards against a torn file."""
RESTORED_PUBLICATIONS = 256
"""Newest complete publications a restart reads: far more than the lag window, though a version may have several."""


class PublicationOpened(Record, frozen=True):
    """The header exists; committed before it leaves, so that a crash can be followed by an Abort."""

    seq: Seq
    artifact: ArtifactId


class PublicationCompleted(Record, frozen=True):
    seq: Seq
    manifest_hash: ManifestHash
    digest: StateDigest


class PublicationAborted(Record, frozen=True):
    seq: Seq


class FloorSeen(Record, frozen=True):
    """A generation and seq that exist somewhere: a host restored from a backup adopts its peers' highest."""

    generation: Generation
    seq: Seq


LedgerRecord = PoolRecord | PublicationOpened | PublicationCompleted | PublicationAborted | FloorSeen

SCHEMA = 1
"""Number of migrations: an older program refuses a newer file."""
migrations = Migrations("aurora-ledger")


def _create_tables(db: Database) -> None:
    db["meta"].create({"id": int, "run": bytes, "secret": bytes, "epoch": int, "generation": int, "seq": int}, pk="id")
    db["meta"].insert(
        {
            "id": 1,
            "run": secrets.token_bytes(16),
            "secret": secrets.token_bytes(32),
            "epoch": 0,
            "generation": 0,
            "seq": 0,
        }
    )
    db["publications"].create(
        {"seq": int, "version": int, "state": str, "artifact": bytes, "manifest_hash": bytes, "digest": bytes},
        pk="seq",
        not_null={"version", "state"},
    )
    db["steps"].create({"run": bytes, "step": int, "submitted": bytes}, pk=("run", "step"))
    db["leases"].create({"lease": bytes, "run": bytes, "step": int, "lessee": str, "granted": bytes}, pk="lease")
    db["samples"].create(
        {"run": bytes, "step": int, "prompt": int, "sample": int, "version": int, "node": str, "signed": bytes},
        pk=("run", "step", "prompt", "sample"),
    )
    db["refusals"].create({"reason": str, "count": int}, pk="reason")


migrations(name="0001")(_create_tables)


def write(db: Database, run: RunId, record: LedgerRecord) -> None:
    """Carry out one record inside the caller's transaction. Raises sqlite3.Error."""
    match record:
        case SampleAdmitted(signed=signed, result=result):
            key = (run, result.target_step, result.prompt, result.sample)
            row = (*key, result.version, signed.signer, encode(signed))
            db.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        case LeaseGranted():
            lease = (record.lease, run, record.step, record.lessee, encode(record))
            db.execute("INSERT INTO leases VALUES (?, ?, ?, ?, ?)", lease)
        case LeaseClosed():
            db.execute("DELETE FROM leases WHERE lease = ?", (record.lease,))
        case SubmitPrompts():
            db.execute("INSERT INTO steps VALUES (?, ?, ?)", (run, record.step, encode(record)))
        case StepForgotten(step=step):
            for table in ("samples", "leases", "steps"):
                db.execute(f"DELETE FROM {table} WHERE run = ? AND step = ?", (run, step))  # noqa: S608 - constants
        case ResultRefused(reason=reason, count=count):
            upsert = (
                "INSERT INTO refusals VALUES (?, ?) ON CONFLICT (reason) DO UPDATE SET count = count + excluded.count"
            )
            db.execute(upsert, (reason, count))
        case VersionPublished():
            pass  # the publication's own records have it
        case _:
            _write_publication(db, record)


def _write_publication(
    db: Database, record: PublicationOpened | PublicationCompleted | PublicationAborted | FloorSeen
) -> None:
    change = "UPDATE publications SET state = ?"
    match record:
        case PublicationOpened(seq=seq, artifact=artifact):
            db.execute(f"{change}, artifact = ? WHERE seq = ?", ("open", artifact, seq))
        case PublicationCompleted(seq=seq, manifest_hash=manifest_hash, digest=digest):
            values = ("complete", manifest_hash, digest, seq)
            db.execute(f"{change}, manifest_hash = ?, digest = ? WHERE seq = ?", values)
        case PublicationAborted(seq=seq):
            db.execute(f"{change} WHERE seq = ?", ("aborted", seq))
        case FloorSeen(generation=generation, seq=seq):
            db.execute("UPDATE meta SET generation = max(generation, ?), seq = max(seq, ?)", (generation, seq))


def pool_records(db: Database, run: RunId) -> Iterator[PoolRecord]:
    """What a new WorkPool replays. Raises WireError when a row is torn."""
    newest = (
        "SELECT * FROM (SELECT seq, version, manifest_hash, digest FROM publications"
        " WHERE state = 'complete' ORDER BY seq DESC LIMIT ?) ORDER BY seq"
    )
    for _, version, manifest_hash, digest in db.execute(newest, (RESTORED_PUBLICATIONS,)):
        yield VersionPublished(Version(version), ManifestHash(manifest_hash), StateDigest(digest))
    for (submitted,) in db.execute("SELECT submitted FROM steps WHERE run = ? ORDER BY step", (run,)):
        yield decode(submitted, SubmitPrompts, limit=MAX_STEP_BYTES)
    for (granted,) in db.execute("SELECT granted FROM leases WHERE run = ? ORDER BY lease", (run,)):
        yield decode(granted, LeaseGranted)
    for (signed,) in db.execute("SELECT signed FROM samples WHERE run = ? ORDER BY rowid", (run,)):
        result = decode(signed, Signed, limit=MAX_STEP_BYTES)
        yield SampleAdmitted(result, decode(result.body, SampleResult))
    for reason, count in db.execute("SELECT reason, count FROM refusals"):
        yield ResultRefused(Reason(reason), count)
