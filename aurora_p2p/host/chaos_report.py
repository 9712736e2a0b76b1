"""What held under faults: from outcomes and audits to one table and a list of broken promises. Pure."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fault. seconds: from restart or SIGCONT until a further version was served by all; None: never."""

    what: str
    whom: str
    seconds: float | None
    detail: str


def broken(report: dict[str, Any]) -> list[str]:
    """Every promise that was not kept, one sentence each; empty when all were."""
    held = report["heldout"]
    checks = [
        (report["not_recovered"], f"{report['not_recovered']} faults were not recovered from"),
        (report["audits_failed"], f"{report['audits_failed']} nodes do not hold the weights that the host signed"),
        (report["mismatches"], f"{report['mismatches']} digest audits failed on the way"),
        (report["doubled"], f"{report['doubled']} samples were admitted twice"),
        (report["lost"], f"{report['lost']} acknowledged samples are missing"),
        (report["stuck"], f"{len(report['stuck'])} times a node stood still that could have gone on"),
        (held["after"] <= held["control"], f"nothing was learned: {held['control']:.3f} -> {held['after']:.3f}"),
    ]
    return [text for failed, text in checks if failed]


def render_chaos(report: dict[str, Any]) -> str:
    """Two tables: the faults with their recovery, and what must hold."""
    from rich.console import Console
    from rich.table import Table

    faults = Table(title=f"{len(report['faults'])} faults, {report['nodes']} nodes, seed {report['seed']}")
    faults.add_column("fault")
    faults.add_column("whom")
    faults.add_column("recovered in", justify="right")
    for one in report["faults"]:
        seconds = "NEVER" if one["seconds"] is None else f"{one['seconds']:.1f} s"
        faults.add_row(one["what"], one["whom"], seconds)
    promises = Table(title="what must hold")
    promises.add_column("promise")
    promises.add_column("measured", justify="right")
    for what, measured in _rows(report):
        promises.add_row(what, measured)
    text = io.StringIO()
    console = Console(file=text, width=100, highlight=False, markup=False)
    console.print(faults)
    console.print(promises)
    return text.getvalue()


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    held = report["heldout"]
    return [
        ("versions published", str(report["versions"])),
        ("final digest audits passed; failed", f"{report['audits_passed']}; {report['audits_failed']}"),
        ("digest mismatches on the way (0)", str(report["mismatches"])),
        ("samples acknowledged", str(report["accepted"])),
        ("acknowledged twice (0); lost (0)", f"{report['doubled']}; {report['lost']}"),
        ("stuck (0); longest stand", f"{len(report['stuck'])}; {report['longest_still_seconds']:.1f} s"),
        ("longest recovery (goal 30 s)", f"{report['max_recovery_seconds']:.1f} s"),
        ("held-out accuracy, control", f"{held['control']:.3f} +- {held['control_sd']:.3f}"),
        ("held-out accuracy, learned under faults", f"{held['after']:.3f}"),
        ("seconds in all", f"{report['wall_seconds']:.0f}"),
    ]
