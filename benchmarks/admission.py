"""What one host's books cost: results admitted and leases granted per second, on one core, each on disk first.

    python -m benchmarks.admission [--json] [--nodes 1000] [--tokens 256] [--folder DIR]

The host's own code over a real ledger, from a message's bytes to those of its reply, with as many nodes as tasks of the
same process, each with its own key; what is missing is the network (benchmarks.fleet has it). Requests and results were
signed before the clock runs.

    admit_batched_per_s     every node sends one result at a time and waits for its receipt: look-ups, signature, disk
    grants_per_s            every node asks for two leases, in turn: request signature, disk, lease signature
    p99_ms                  of one result, from call to receipt, while they arrive at random, PACED_PER_S on average
    single_over_raw_commit  one result per commit, nobody else: its rate over that of the same row in bare SQLite with
                            synchronous=FULL; the median of rounds that take turns
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from aurora_p2p.lease.events import SampleAdmitted
from aurora_p2p.store.ledger import Ledger
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.control import Receipts, SampleResult, Submit
from benchmarks.admission_fleet import LEASES, Fleet, Node, open_fleet

PACED_PER_S = 500
"""Results per second in the latency run: 1,000 nodes that each finish a sample every two seconds."""
PACED_RESULTS = 2000
ROUNDS, COMMITS = 7, 40
"""Of single commits: enough that the median of the rounds' ratios moves by a few per cent only."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Something that was done `count` times. cpu_seconds: of the whole process, nodes' tasks included."""

    count: int
    seconds: float
    cpu_seconds: float

    @property
    def per_second(self) -> float:
        return self.count / self.seconds


async def timed(count: int, work: Callable[[], Awaitable[None]]) -> Stretch:
    started, cpu = time.perf_counter(), time.process_time()
    await work()
    return Stretch(count, time.perf_counter() - started, time.process_time() - cpu)


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    ratios, singles = await single_commits(folder, options.tokens)
    async with open_fleet(folder / "fleet", options.nodes, options.tokens) as fleet:
        before = fleet.ledger.status()["commits"]
        grants = await timed(LEASES * options.nodes, fleet.ask_all)
        granted = fleet.ledger.status()["commits"]
        fleet.sign_all()
        paced = min(PACED_RESULTS, len(fleet.results) // 2)
        early, late = fleet.results[paced:], fleet.results[:paced]
        admitted = await timed(len(early), partial(at_once, fleet, early))
        commits = fleet.ledger.status()["commits"]
        latencies = await at_random(fleet, late)
        accepted = [decode(reply, Receipts).receipts[0].accepted for reply in fleet.receipts]
        assert accepted == [True] * len(fleet.results), accepted.count(False)
    return {
        "nodes": options.nodes,
        "tokens": options.tokens,
        "admit_batched_per_s": admitted.per_second,
        "admit_cpu_us": 1e6 * admitted.cpu_seconds / admitted.count,
        "admitted": admitted.count,
        "results_per_commit": admitted.count / (commits - granted),
        "grants_per_s": grants.per_second,
        "grant_cpu_us": 1e6 * grants.cpu_seconds / grants.count,
        "grants_per_commit": grants.count / (granted - before),
        "p50_ms": 1e3 * statistics.median(latencies),
        "p99_ms": 1e3 * statistics.quantiles(latencies, n=100)[98],
        "paced_per_s": PACED_PER_S,
        "single_over_raw_commit": statistics.median(ratios),
        "single_commits_per_s": singles,
    }


# ---- many nodes


async def at_once(fleet: Fleet, results: Sequence[tuple[Node, bytes]]) -> None:
    """Each node sends its results one by one."""
    by_node: dict[str, list[tuple[Node, bytes]]] = {}
    for node, message in results:
        by_node.setdefault(node.identity.peer, []).append((node, message))
    async with trio.open_nursery() as nursery:
        for mine in by_node.values():
            nursery.start_soon(one_by_one, fleet, mine)


async def one_by_one(fleet: Fleet, results: Sequence[tuple[Node, bytes]]) -> None:
    for node, message in results:
        await send(fleet, node, message)


async def send(fleet: Fleet, node: Node, message: bytes) -> None:
    reply = await fleet.ask(node, message)
    fleet.receipts.append(reply)


async def at_random(fleet: Fleet, results: Sequence[tuple[Node, bytes]]) -> list[float]:
    """Seconds of each result; they arrive whether or not earlier ones have their receipt."""
    rng, latencies = random.Random(1), list[float]()

    async def one(node: Node, message: bytes, due: float) -> None:
        await send(fleet, node, message)
        latencies.append(trio.current_time() - due)

    due = trio.current_time()
    async with trio.open_nursery() as nursery:
        for node, message in results:
            due += rng.expovariate(PACED_PER_S)
            await trio.sleep_until(due)
            nursery.start_soon(one, node, message, due)
    return latencies


# ---- one at a time


async def single_commits(folder: Path, tokens: int) -> tuple[list[float], float]:
    """(rate of the ledger over that of bare SQLite, for each round; the ledger's median commits per second)."""
    async with open_fleet(folder / "single", 1, tokens, max_samples=ROUNDS * COMMITS // LEASES) as fleet:
        await fleet.ask_all()
        fleet.sign_all()
        signed = [decode(message, Submit).results[0] for _, message in fleet.results]
        records = [SampleAdmitted(one, decode(one.body, SampleResult)) for one in signed]
    ours = Ledger.open(folder / "ours.sqlite")
    raw = bare(folder / "raw.sqlite")
    ratios, rates = list[float](), list[float]()
    for number in range(ROUNDS):
        batch = records[number * COMMITS : (number + 1) * COMMITS]
        theirs = await timed(COMMITS, partial(insert_each, raw, batch))
        mine = await timed(COMMITS, partial(commit_each, ours, batch))
        ratios.append(mine.per_second / theirs.per_second)
        rates.append(mine.per_second)
    raw.close()
    ours.close()
    return ratios, statistics.median(rates)


def bare(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE samples (run BLOB, step INTEGER, prompt INTEGER, sample INTEGER, version INTEGER, node TEXT,"
        " signed BLOB, PRIMARY KEY (run, step, prompt, sample))"
    )
    return connection


async def insert_each(connection: sqlite3.Connection, batch: Sequence[SampleAdmitted]) -> None:
    for record in batch:
        result = record.result
        key = (result.run, result.target_step, result.prompt, result.sample)
        row = (*key, result.version, record.signed.signer, encode(record.signed))
        connection.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?)", row)


async def commit_each(ledger: Ledger, batch: Sequence[SampleAdmitted]) -> None:
    for record in batch:
        await ledger.commit([record])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admission", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--nodes", type=int, default=1000, help="as many keys, members and tasks")
    parser.add_argument("--tokens", type=int, default=256, help="of each result")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary folder otherwise")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aurora-admission-", dir=options.folder) as folder:
        figures = trio.run(measure, options, Path(folder))
    print(json.dumps(figures, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
