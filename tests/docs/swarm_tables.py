"""The tables of the swarm and of surviving, for tests/docs/benchmarks.py: what benchmarks printed, as Markdown."""

from __future__ import annotations

from typing import Any

from tests.docs.tables import run_of, table

Kept = dict[str, Any]

POLICIES = ("ours", "ours_warm", "superseed", "bittorrent", "relay", "direct")


def number(value: float | None, digits: int = 2) -> str:
    return "never" if value is None else f"{value:.{digits}f}"


def simulated(kept: Kept) -> str:
    """Last over bound of every policy; the goal beside."""
    report = kept["report"]
    used = [one for one in POLICIES if any(one in rows for rows in report["scenarios"].values())]
    rows = [
        [
            name,
            f"{report['goals'][name]:.2f}",
            *(number(rows[one]["last_over_bound"]) if one in rows else "" for one in used),
        ]
        for name, rows in report["scenarios"].items()
    ]
    return table(["scenario", "goal", *(f"`{one}`" for one in used)], rows)


def simulated_ours(kept: Kept) -> str:
    keys = ("median_over_bound", "origin_copies", "cross_region_copies")
    rows = [
        [name, *(number(rows["ours"][key]) for key in keys), f"{rows['ours']['duplicate_ratio']:.1%}"]
        for name, rows in kept["report"]["scenarios"].items()
    ]
    return table(["scenario", "median node over the bound", "origin copies", "cross-region copies", "duplicates"], rows)


def crashes(kept: Kept) -> str:
    report = kept["report"]
    names = (
        ("cases", "cases"),
        ("unreached", "of those, not reached"),
        ("wrong_digests", "wrong digests"),
        ("lost", "acknowledged samples lost"),
        ("doubled", "samples counted twice"),
        ("stuck", "stuck"),
        ("p50_recovery_seconds", "recovery, median, s"),
        ("max_recovery_seconds", "recovery, slowest, s"),
    )
    return table(["figure", "value"], [[label, f"{report[key]:,}"] for key, label in names])


def growth(kept: Kept) -> str:
    report = kept["report"]
    rows = [
        ["versions", f"{report['versions']:,}"],
        ["minutes", number(report["minutes"], 1)],
        *(
            [f"{what}, the most of any process", number(max(report[key].values()), 1)]
            for key, what in (
                ("rss_growth_mb", "memory growth, MB"),
                ("open_fds_growth", "growth of open descriptors"),
                ("tasks_growth", "growth of tasks"),
            )
        ),
    ]
    return table(["figure", "value"], rows)


PARTS = {
    "sim-run": ("swarm_sim", run_of),
    "sim-last": ("swarm_sim", simulated),
    "sim-ours": ("swarm_sim", simulated_ours),
    "crash-run": ("crash", run_of),
    "crash-figures": ("crash", crashes),
    "soak-run": ("soak", run_of),
    "soak-figures": ("soak", growth),
}
