"""Whether a ledger is sound: everything that can be proven from the file alone.

    SQLite's own check of every page                       each row decodes, and its key says what its value says
    each sample: its node's signature, the seed that the   in its step's bounds, within the lag, from weights that were
    run's secret draws for it, its live lease if any       published for its version
    all rows together replay into a book of samples

Not provable: what was deleted (forgotten steps, ended leases), and whether a restored file is the newest.
"""

from __future__ import annotations

from collections.abc import Iterator

from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.lease.admission import lag_allowed
from aurora_p2p.lease.book import Book
from aurora_p2p.lease.events import LeaseGranted
from aurora_p2p.lease.terms import seed_of
from aurora_p2p.store.reading import Reading
from aurora_p2p.store.schema import MAX_STEP_BYTES, pool_records
from aurora_p2p.types import LeaseId
from aurora_p2p.wire.codec import decode
from aurora_p2p.wire.control import SampleResult
from aurora_p2p.wire.signed import Signed, open_signed
from aurora_p2p.wire.trainer import SubmitPrompts

STATES = frozenset({"reserved", "open", "complete", "aborted"})


def problems_of(reading: Reading, max_lag: int) -> Iterator[str]:
    """What is wrong, one line each, with ids and never with secrets; nothing when the ledger is sound."""
    pages = [row[0] for row in reading.db.execute("PRAGMA integrity_check(10)")]
    if pages != ["ok"]:
        yield from (f"pages: {line}" for line in pages)
        return
    try:
        found = False
        for problem in _Proof(reading, max_lag).problems():
            found = True
            yield problem
        if not found:
            yield from _replay(reading, max_lag)
    except WireError as error:
        yield f"a row is torn: {error}"


def _replay(reading: Reading, max_lag: int) -> Iterator[str]:
    book = Book(max_lag)
    try:
        for record in pool_records(reading.db, reading.run):
            book.apply(record, now=0.0)
    except (ShapeError, KeyError) as error:
        yield f"replay: {error}"


class _Proof:
    def __init__(self, reading: Reading, max_lag: int) -> None:
        self._db, self._run, self._max_lag = reading.db, reading.run, max_lag
        self._secret: bytes = reading.db.execute("SELECT secret FROM meta").fetchone()[0]
        self._steps: dict[int, SubmitPrompts] = {}
        self._leases: dict[LeaseId, LeaseGranted] = {}
        rows = "SELECT version, manifest_hash, digest FROM publications WHERE state = 'complete'"
        self._published = set(reading.db.execute(rows).fetchall())

    def problems(self) -> Iterator[str]:
        yield from self._of_publications()
        yield from self._of_steps()
        yield from self._of_leases()
        rows = "SELECT step, prompt, sample, version, node, signed FROM samples WHERE run = ? ORDER BY rowid"
        for *key, signed in self._db.execute(rows, (self._run,)):
            named = f"sample {key[2]} of prompt {key[1]} in step {key[0]}"
            yield from (f"{named}: {problem}" for problem in self._of_sample(key, decode(signed, Signed)))

    def _of_publications(self) -> Iterator[str]:
        rows = "SELECT seq, state, artifact, manifest_hash, digest FROM publications ORDER BY seq"
        for seq, state, artifact, manifest_hash, digest in self._db.execute(rows):
            if state not in STATES:
                yield f"publication {seq}: no state is called {state!r}"
            if state == "complete" and not (manifest_hash and digest):
                yield f"publication {seq} is complete and has no manifest"
            if state == "open" and not artifact:
                yield f"publication {seq} is open and has no artifact"

    def _of_steps(self) -> Iterator[str]:
        for step, body in self._db.execute("SELECT step, submitted FROM steps WHERE run = ?", (self._run,)):
            submitted = decode(body, SubmitPrompts, limit=MAX_STEP_BYTES)
            self._steps[step] = submitted
            if submitted.step != step:
                yield f"step {step}: the prompts are those of step {submitted.step}"

    def _of_leases(self) -> Iterator[str]:
        rows = "SELECT lease, step, lessee, granted FROM leases WHERE run = ?"
        for lease, step, lessee, body in self._db.execute(rows, (self._run,)):
            granted = decode(body, LeaseGranted)
            self._leases[LeaseId(lease)] = granted
            if (granted.lease, granted.step, granted.lessee) != (lease, step, lessee):
                yield f"lease {lease.hex()}: its row says another lease, step or node than its terms"
            elif step not in self._steps:
                yield f"lease {lease.hex()}: step {step} is not in the ledger"

    def _of_sample(self, key: list[int | str], signed: Signed) -> Iterator[str]:
        result = decode(signed.body, SampleResult)
        if key != [result.target_step, result.prompt, result.sample, result.version, signed.signer]:
            yield "its row says something else than what the node signed"
            return
        try:
            open_signed(signed, SampleResult, {signed.signer})
        except WireError:
            yield f"the signature of {signed.signer} is wrong"
        yield from self._of_draw(result)
        lease = self._leases.get(result.lease)
        if lease is not None and (lease.lessee, lease.fencing) != (signed.signer, result.fencing):
            yield f"lease {result.lease.hex()} is another node's"

    def _of_draw(self, result: SampleResult) -> Iterator[str]:
        submitted = self._steps.get(result.target_step)
        if result.run != self._run:
            yield "it is another run's"
        if submitted is None:
            yield "its step is not in the ledger"
        elif result.prompt >= len(submitted.prompts) or result.sample >= submitted.group:
            yield "its step has no such sample"
        if not lag_allowed(result.target_step, result.version, self._max_lag):
            yield f"version {result.version} is outside the lag window"
        if (result.version, result.manifest_hash, result.digest) not in self._published:
            yield f"its weights were never published as version {result.version}"
        if result.seed != seed_of(self._secret, result.target_step, result.version, (result.prompt, result.sample)):
            yield "its seed is not the one that the run draws"
