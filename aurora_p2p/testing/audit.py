"""What became of every acknowledged sample, after the fact: from the nodes' logs and the host's ledger, on disk.

A node notes each receipt (event "receipts" in its log): the lease, the step, and which samples the host accepted. The
ledger has the admitted samples of the newest steps; older steps are consumed and forgotten. Together they show

    doubled    one sample accepted under two leases: it was admitted twice, or lost and made again
    lost       an accepted sample of a step that the ledger still has, which the ledger does not have from that node

A repeated acknowledgement under one lease is none of the two: the first may have got lost on the way.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

Sample = tuple[int, int, int]
"""(step, prompt, sample)."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """One sample that the host told a node it has."""

    lease: str
    sample: Sample


@dataclass(frozen=True, slots=True)
class Audit:
    """accepted: distinct samples that nodes were told are in; `doubled` and `lost` must be empty."""

    accepted: int
    doubled: tuple[Sample, ...]
    lost: tuple[Sample, ...]


def accepted_in(log: Path) -> list[Accepted]:
    """Every accepted sample that a node's log tells of, rotated files included; a torn last line is skipped."""
    found = []
    for path in sorted(log.parent.glob(log.name + "*")):
        for line in path.read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and entry.get("event") == "receipts":
                step = int(entry["step"])
                found += [Accepted(entry["lease"], (step, prompt, index)) for prompt, index in entry["accepted"]]
    return found


def samples_in(ledger: Path) -> dict[Sample, str]:
    """The ledger's admitted samples and the node each is from. It is copied first: a running host has it locked.

    The copy is only a snapshot of a host at rest, or of one that is not running.
    """
    with tempfile.TemporaryDirectory() as folder:
        for path in ledger.parent.glob(ledger.name + "*"):
            shutil.copy(path, folder)
        with closing(sqlite3.connect(Path(folder) / ledger.name)) as copy:
            rows = copy.execute("SELECT step, prompt, sample, node FROM samples").fetchall()
    return {(step, prompt, sample): node for step, prompt, sample, node in rows}


def audit(accepted: Mapping[str, Iterable[Accepted]], ledger: Mapping[Sample, str]) -> Audit:
    """accepted: by the node's peer id. ledger: what `samples_in` read after the last of them."""
    leases: dict[Sample, set[str]] = defaultdict(set)
    owners: dict[Sample, set[str]] = defaultdict(set)
    for peer, each in accepted.items():
        for one in each:
            leases[one.sample].add(one.lease)
            owners[one.sample].add(peer)
    kept = {sample[0] for sample in ledger}
    return Audit(
        accepted=len(leases),
        doubled=tuple(sorted(sample for sample, under in leases.items() if len(under) > 1)),
        lost=tuple(sorted(one for one, peers in owners.items() if one[0] in kept and ledger.get(one) not in peers)),
    )
