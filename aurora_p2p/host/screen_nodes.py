"""The nodes on a host's screen: a table by region, and what each says it does. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from statistics import median
from typing import Any

from rich.text import Text

from aurora_p2p.host.why import SILENT_SECONDS
from aurora_p2p.local.screen.figures import UNKNOWN, age, count, short
from aurora_p2p.local.screen.panels import Piece, line, table

Status = Mapping[str, Any]
Node = Mapping[str, Any]

_COLUMNS: tuple[tuple[str, int], ...] = (
    ("node", 0),
    ("serves", 0),
    ("tokens/s", 0),
    ("leased", 0),
    ("has", 44),
    ("staged", 50),
    ("admitted", 60),
    ("refused", 68),
    ("heard", 78),
    ("address", 96),
)
"""Columns of the node table, and the width from which each is shown."""
_RIGHT = {"serves", "tokens/s", "leased", "has", "staged", "admitted", "refused"}


def nodes_title(status: Status) -> str:
    """How many, where, and how many of them work."""
    regions = {node["region"] for node in status["nodes"]}
    where = f" in {len(regions)} regions" if len(regions) > 1 else ""
    return f"nodes: {len(status['nodes'])}{where}, {active(status)} active"


def nodes_table(status: Status, width: int) -> list[Text]:
    """One row for each node, under a line for its region; then what the nodes are doing."""
    nodes = status["nodes"]
    if not nodes:
        return [line("no node has joined")]
    names = [name for name, least in _COLUMNS if width >= least]
    right = frozenset(index for index, name in enumerate(names) if name in _RIGHT)
    heading, *rows = table(
        [[(name, "bold") for name in names], *([_cell(node, status, name) for name in names] for node in nodes)],
        right=right,
    )
    lines, at = [heading], 0
    for region, members in groupby(nodes, key=lambda node: node["region"]):
        group = list(members)
        lines.append(_region(region, group))
        lines += rows[at : at + len(group)]
        at += len(group)
    return lines + _doing(nodes)


def _region(region: int, group: list[Node]) -> Text:
    """How many, how fast together, and how far from the host: the median of the round trips that are known."""
    speed = sum(node["tokens_per_second"] or 0.0 for node in group if node["active"])
    known = [node["rtt_ms"] for node in group if node["rtt_ms"] is not None]
    away = f" ({median(known):.0f} ms)" if known else ""
    nodes = f"{len(group)} node{'s' if len(group) > 1 else ''}"
    return line((f"region {region}", "bold"), f"{away}: {nodes}, {count(speed)} tokens/s")


def _cell(node: Node, status: Status, name: str) -> Piece:
    progress = node["progress"] or {}
    match name:
        case "node":
            return (short(node["peer"]), "" if node["linked"] else "yellow")
        case "serves":
            return (version(node["version"]), "" if node["version"] >= status["version"] else "yellow")
        case "staged":
            return version(progress.get("staged", -1))
        case "has":
            return UNKNOWN if node["has_percent"] is None else f"{node['has_percent']} %"
        case "tokens/s":
            return count(node["tokens_per_second"])
        case "refused":
            return (str(sum(node["refused"].values())), "yellow" if node["refused"] else "")
        case "heard":
            seconds = node["seen_seconds"]
            return (age(seconds), "red" if seconds > SILENT_SECONDS else "")
        case _:
            return str(node[name])


def _doing(nodes: list[Node]) -> list[Text]:
    """What each node says it does."""
    return [line((f"{short(node['peer'])} ", "dim"), _says(node["progress"])) for node in nodes if node["progress"]]


def _says(progress: Mapping[str, Any]) -> str:
    if progress["fetching"] < 0:
        return str(progress["state"])
    total = f"/{progress['total']}" if progress["total"] else ""
    return f"fetches {progress['fetching']} ({progress['have']}{total})  {progress['state']}"


def active(status: Status) -> int:
    """Nodes that ask for work, or hold some."""
    return sum(node["active"] for node in status["nodes"])


def version(number: int) -> str:
    """ "-" for none."""
    return UNKNOWN if number < 0 else str(number)
