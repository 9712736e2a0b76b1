"""The demo's figures: from step records and the programs' own status to one report and one table. Pure."""

from __future__ import annotations

import io
import math
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aurora_p2p.train.loop import StepRecord

Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Statuses:
    """`status --json` of the host and of every node at one moment."""

    host: Status
    nodes: list[Status]


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """One phase: its optimizer steps, its seconds from entry to last publication, and the status around it."""

    records: list[StepRecord]
    seconds: float
    before: Statuses
    after: Statuses

    @property
    def tokens_per_second(self) -> float:
        return sum(record.tokens for record in self.records) / self.seconds

    @property
    def artifact_bytes(self) -> int:
        """Body bytes published in the phase."""
        return sum(record.publication.bytes for record in self.records)

    def node_growth(self, key: str) -> float:
        """How much a counter grew, summed over nodes."""
        pairs = zip(self.before.nodes, self.after.nodes, strict=True)
        return float(sum(after[key] - before[key] for before, after in pairs))

    def segments_growth(self, key: str) -> list[int]:
        """How much a segment counter of each node's exchange grew: "origin", "peers" or "sent"."""
        pairs = zip(self.before.nodes, self.after.nodes, strict=True)
        return [after["exchange"]["segments"][key] - before["exchange"]["segments"][key] for before, after in pairs]

    @property
    def origin_bytes(self) -> int:
        """Segment payload bytes that the host sent."""
        return int(self.after.host["exchange"]["sent_bytes"] - self.before.host["exchange"]["sent_bytes"])

    @property
    def pauses_ms(self) -> list[float]:
        """Last token before to first token after each commit of the phase, all nodes, sorted."""
        pauses = []
        for before, after in zip(self.before.nodes, self.after.nodes, strict=True):
            new = len(after["pause_seconds"]) - len(before["pause_seconds"])
            pauses += [1000 * seconds for seconds in after["pause_seconds"][-new:]] if new > 0 else []
        return sorted(pauses)


@dataclass(frozen=True, slots=True)
class Demo:
    """Everything measured."""

    steps: int
    nodes: int
    lr: float
    seed: int
    prompts: int
    generation_seconds: float
    cap_bytes_per_second: float
    full_bytes: int
    before: float
    after: float
    control_after: float
    control_sd: float
    learn: PhaseFigures
    sparse: PhaseFigures
    full: PhaseFigures | None
    final: Statuses
    wall_seconds: float


def report_of(demo: Demo) -> dict[str, Any]:
    """The --report JSON."""
    learn, sparse = demo.learn, demo.sparse
    digests = {node["digest"] for node in demo.final.nodes}
    refused: Counter[str] = Counter(demo.final.host["work"]["refused"])
    transfer, waited = learn.node_growth("transfer_seconds"), learn.node_growth("waited_seconds")
    report = {
        "steps": demo.steps,
        "nodes": demo.nodes,
        "lr": demo.lr,
        "seed": demo.seed,
        "prompts_per_step": demo.prompts,
        "generation_seconds": demo.generation_seconds,
        "cap_kib_per_second": demo.cap_bytes_per_second / 1024,
        "versions": demo.final.host["version"] + 1,
        "digest_audits": sum(node["digest_audits"] for node in demo.final.nodes),
        "digest_mismatches": sum(node["digest_mismatches"] for node in demo.final.nodes) + len(digests) - 1,
        "admitted": sum(node["admitted"] for node in demo.final.host["work"]["nodes"]),
        "refused": dict(refused),
        "reward": [round(record.report.reward, 4) for record in learn.records],
        "heldout": {
            "before": demo.before,
            "after": demo.after,
            "control_after": demo.control_after,
            "control_sd": demo.control_sd,
        },
        "changed_ratio": [changed_ratio(record) for record in learn.records],
        "delta_bytes": [record.publication.bytes for record in learn.records],
        "full_bytes": demo.full_bytes,
        "segments": {
            "origin": sum(learn.segments_growth("origin")),
            "peers": sum(learn.segments_growth("peers")),
            "served": learn.segments_growth("sent"),
        },
        "origin_copies": learn.origin_bytes / learn.artifact_bytes,
        "hidden_transfer_ratio": 1 - waited / transfer if transfer else 1.0,
        "pause_ms": {"p50": quantile(learn.pauses_ms, 0.5), "p99": quantile(learn.pauses_ms, 0.99)},
        "tokens_per_second": learn.tokens_per_second,
        "seconds": learn.seconds,
        "sparse_phase": {
            "lr": 1e-6,
            "changed_ratio": [changed_ratio(record) for record in sparse.records],
            "delta_bytes": [record.publication.bytes for record in sparse.records],
        },
        "baseline_full": None,
        "wall_seconds": demo.wall_seconds,
    }
    if demo.full is not None:
        report["baseline_full"] = {
            "tokens_per_second": demo.full.tokens_per_second,
            "seconds": demo.full.seconds,
            "origin_copies": demo.full.origin_bytes / demo.full.artifact_bytes,
        }
    return report


def changed_ratio(record: StepRecord) -> float:
    """Share of elements whose bits changed in one step."""
    return record.publication.changed / record.publication.elements


def quantile(values: list[float], share: float) -> float | None:
    """Nearest-rank quantile of sorted values; None of none."""
    return values[max(math.ceil(share * len(values)) - 1, 0)] if values else None


def render_table(report: dict[str, Any]) -> str:
    """The table at the end, plain text."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{report['nodes']} nodes, {report['steps']} steps, lr {report['lr']:g}")
    table.add_column("what")
    table.add_column("measured", justify="right")
    for what, measured in _rows(report):
        table.add_row(what, measured)
    text = io.StringIO()
    Console(file=text, width=100, highlight=False, markup=False).print(table)
    return text.getvalue()


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    held, segments, pauses = report["heldout"], report["segments"], report["pause_ms"]
    sparse, full = report["sparse_phase"], report["baseline_full"]
    delta = statistics.median(report["delta_bytes"])
    sparse_delta = statistics.median(sparse["delta_bytes"])
    rows = [
        ("reward, first to last step", f"{report['reward'][0]:.2f} -> {report['reward'][-1]:.2f}"),
        ("held-out accuracy", f"{held['before']:.3f} -> {held['after']:.3f}"),
        ("the same with lr 0 (control)", f"{held['control_after']:.3f} +- {held['control_sd']:.3f}"),
        (
            "versions; full digest audits; mismatches",
            f"{report['versions']}; {report['digest_audits']}; {report['digest_mismatches']}",
        ),
        ("samples admitted; refused", f"{report['admitted']}; {sum(report['refused'].values())}"),
        ("delta, median; full weights", f"{delta / 1024:.1f} KiB; {report['full_bytes'] / 1024:.0f} KiB"),
        ("weights changed, median per step", f"{statistics.median(report['changed_ratio']):.3f}"),
        ("segments from the host; from peers", f"{segments['origin']}; {segments['peers']}"),
        ("segments served by each node", ", ".join(map(str, segments["served"]))),
        ("copies sent by the host", f"{report['origin_copies']:.2f}"),
        ("transfer hidden behind generation", f"{100 * report['hidden_transfer_ratio']:.0f} %"),
        ("pause around a commit, p50; p99", f"{_ms(pauses['p50'])}; {_ms(pauses['p99'])}"),
        ("tokens/s", f"{report['tokens_per_second']:.0f}"),
        (
            f"sparse phase (lr {sparse['lr']:g}): changed; delta",
            f"{statistics.median(sparse['changed_ratio']):.4f}; {sparse_delta / 1024:.1f} KiB",
        ),
    ]
    if full:
        gain = report["tokens_per_second"] / full["tokens_per_second"]
        rows.append(("tokens/s with full-weight broadcast", f"{full['tokens_per_second']:.0f}  (deltas: {gain:.1f}x)"))
    rows.append(("seconds in all", f"{report['wall_seconds']:.0f}"))
    return rows


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
