"""What a node remembers of one swarm between starts: a small SQLite file in the swarm's folder.

    floor     the oldest (generation, seq) it still accepts; only rises, so no old host or backup can roll it back
    charter   the newest delegation with its succession chain
    peers     signed peer records, by which it can dial without a bootstrap; a higher record seq replaces a lower one
    own seq   of its own peer record; only rises

Every call is on disk when it returns (a few ms): a daemon calls through `trio.to_thread.run_sync`. On a full disk the
floor, the charter and the peers are owed instead: `waits` says so, and the next call writes them first. Owing them is
safe, for the daemon holds the same in memory; what a killed one owes it hears again from its host. Records are stored
as they were signed; the caller has verified them (swarm/roster.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from aurora_p2p.errors import DiskFullError, StoreError
from aurora_p2p.local import faults
from aurora_p2p.local.faults import reach
from aurora_p2p.store.database import open_database, store_errors
from aurora_p2p.types import Generation, PeerId, Seq, SwarmId
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.limits import MAX_MEMBERS
from aurora_p2p.wire.signed import Signed
from aurora_p2p.wire.trust import Charter, Floor, PeerRecord

MAX_REMEMBERED = MAX_MEMBERS
"""Peers kept: as many as the largest roster has."""
SCHEMA = 1
migrations = Migrations("aurora-swarm-memory")


def _create_tables(db: Database) -> None:
    db["swarm"].create(
        {"id": int, "swarm": str, "generation": int, "seq": int, "charter": bytes, "record_seq": int}, pk="id"
    )
    db["peers"].create({"heard": int, "peer": str, "record_seq": int, "record": bytes}, pk="heard")
    db["peers"].create_index(["peer"], unique=True)


migrations(name="0001")(_create_tables)


class SwarmMemory:
    """Open with `SwarmMemory.open`. All methods raise StoreError when the disk does not do its part."""

    def __init__(self, path: Path, db: Database) -> None:
        self._path, self._db = path, db
        self._owed: dict[str, Callable[[], None]] = {}
        """Writes that a full disk has kept waiting, by what they are about: a newer one replaces an older."""
        self.waits = ""
        """Why something is owed to the disk, one line; empty when nothing is."""

    @classmethod
    def open(cls, path: Path, swarm: SwarmId) -> SwarmMemory:
        """Open or create. Raises StoreError, also when the file belongs to another swarm."""
        db = open_database(path, migrations, SCHEMA)
        with store_errors(path):
            db.execute("INSERT OR IGNORE INTO swarm VALUES (1, ?, 0, 0, NULL, 0)", (swarm,))
            (owner,) = db.execute("SELECT swarm FROM swarm").fetchone()
            if owner != swarm:
                db.close()
                raise StoreError(f"{path} belongs to swarm {owner}", hint="move it away, or use another --home")
        return cls(path, db)

    def close(self) -> None:
        with store_errors(self._path):
            self._db.close()

    def floor(self) -> Floor:
        with store_errors(self._path):
            generation, seq = self._db.execute("SELECT generation, seq FROM swarm").fetchone()
        return Floor(Generation(generation), Seq(seq))

    def raise_floor(self, floor: Floor) -> None:
        """Generation and seq each only rise; a lower one changes nothing."""
        change = "UPDATE swarm SET generation = max(generation, ?), seq = max(seq, ?)"
        self._write("floor", lambda: self._change(change, floor.generation, floor.seq))

    def charter(self) -> Charter | None:
        """Raises WireError when the row is torn."""
        with store_errors(self._path):
            (charter,) = self._db.execute("SELECT charter FROM swarm").fetchone()
        return None if charter is None else decode(charter, Charter)

    def save_charter(self, charter: Charter) -> None:
        self._write("charter", lambda: self._change("UPDATE swarm SET charter = ?", encode(charter)))

    def next_record_seq(self) -> int:
        """A number for the node's own next peer record, on disk before it is used."""
        with store_errors(self._path), self._db.atomic():
            self._db.execute("UPDATE swarm SET record_seq = record_seq + 1")
            return int(self._db.execute("SELECT record_seq FROM swarm").fetchone()[0])

    def remember(self, records: Iterable[Signed]) -> None:
        """Keep verified peer records; past MAX_REMEMBERED the one heard of longest ago goes."""
        heard = list(records)
        self._write("peers", lambda: self._remember_all(heard))

    def _write(self, about: str, write: Callable[[], None]) -> None:
        """Carry out what is owed, and this."""
        self._owed[about] = write
        try:
            for each in list(self._owed):
                self._owed[each]()
                del self._owed[each]
        except DiskFullError as error:
            self.waits = str(error)
        else:
            self.waits = ""

    def _change(self, statement: str, *values: object) -> None:
        with store_errors(self._path):
            faults.disk("write", self._path)
            self._db.execute(statement, values)

    def _remember_all(self, records: Iterable[Signed]) -> None:
        with store_errors(self._path), self._db.atomic():
            faults.disk("write", self._path)
            for signed in records:
                self._remember(signed, decode(signed.body, PeerRecord))
                reach("memory.writing")
            self._db.execute(
                "DELETE FROM peers WHERE heard NOT IN (SELECT heard FROM peers ORDER BY heard DESC LIMIT ?)",
                (MAX_REMEMBERED,),
            )

    def _remember(self, signed: Signed, record: PeerRecord) -> None:
        known = self._db.execute("SELECT record_seq FROM peers WHERE peer = ?", (record.peer,)).fetchone()
        if known is not None and known[0] > record.seq:
            return
        self._db.execute("DELETE FROM peers WHERE peer = ?", (record.peer,))
        last = "(SELECT coalesce(max(heard), 0) + 1 FROM peers)"
        self._db.execute(
            f"INSERT INTO peers VALUES ({last}, ?, ?, ?)",  # noqa: S608 - a constant
            (record.peer, record.seq, encode(signed)),
        )

    def forget(self, peer: PeerId) -> None:
        with store_errors(self._path):
            self._db.execute("DELETE FROM peers WHERE peer = ?", (peer,))

    def peers(self) -> list[Signed]:
        """Signed peer records, the one heard of last first. Raises WireError when a row is torn."""
        with store_errors(self._path):
            rows = self._db.execute("SELECT record FROM peers ORDER BY heard DESC").fetchall()
        return [decode(record, Signed) for (record,) in rows]
