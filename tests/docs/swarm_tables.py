"""The tables of the swarm and of surviving, for tests/docs/benchmarks.py: what benchmarks printed, as Markdown."""

from __future__ import annotations

from typing import Any

from tests.docs.tables import run_of, table

Kept = dict[str, Any]

POLICIES = ("ours", "ours_warm", "superseed", "bittorrent", "relay", "direct")
RIVALS = ("ours", "chain", "libtorrent_tuned", "libtorrent", "relay", "direct")


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


def real(kept: Kept) -> str:
    rows = [
        [
            name,
            policy,
            *(number(one[key]) for key in ("last_over_bound", "median_over_bound", "origin_copies")),
            number(one["cpu_s_per_gb"], 1),
        ]
        if one["complete"]
        else [name, policy, "never", "", "", ""]
        for name, policies in kept["report"]["scenarios"].items()
        for policy, one in ((each, policies[each]) for each in RIVALS if each in policies)
    ]
    return table(["scenario", "policy", "last node", "median node", "origin copies", "CPU s per GB"], rows)


def killed(kept: Kept) -> str:
    report = kept["report"]
    rows = [[role, number(seconds)] for role, seconds in report["killed_extra_seconds"].items()]
    ends = ", ".join(f"`{name}`: {'yes' if whole else 'no'}" for name, whole in report["killed_completes"].items())
    figures = table(["a killed or stopped", "extra seconds, the worst of 20, 50 and 90 %"], rows)
    return f"{figures}\n\nDoes every other node complete: {ends}."


def paths(kept: Kept) -> str:
    """Seconds by number of connections, ours and plain sockets', for each loss."""
    rows = [
        [
            f"{one['path']['loss_ratio']:.2%}",
            f"{one['bound_seconds']:.2f}",
            *(
                f"{one['streams'][count]['seconds']:.2f} ({one['plain'][count]['seconds']:.2f})"
                for count in sorted(one["streams"], key=int)
            ),
            f"{one['gain']:.2f}",
        ]
        for one in kept["report"]["paths"].values()
    ]
    first = next(iter(kept["report"]["paths"].values()))
    return table(["lost", "bound, s", *(f"{count}" for count in sorted(first["streams"], key=int)), "gain"], rows)


def bulk(kept: Kept) -> str:
    report = kept["report"]
    rows = [
        [f"`{way}`", f"{speed:.0f}", number(report["cpu_s_per_gb"][way], 1)]
        for way, speed in report["mb_per_s"].items()
    ]
    return table(["way", "MB/s", "CPU s per GB, both sides"], rows)


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
    "net-run": ("swarm_net", run_of),
    "net-figures": ("swarm_net", real),
    "net-killed": ("swarm_net", killed),
    "wan-run": ("wan", run_of),
    "wan-figures": ("wan", paths),
    "bulk-run": ("bulk", run_of),
    "bulk-figures": ("bulk", bulk),
    "crash-run": ("crash", run_of),
    "crash-figures": ("crash", crashes),
    "soak-run": ("soak", run_of),
    "soak-figures": ("soak", growth),
}
