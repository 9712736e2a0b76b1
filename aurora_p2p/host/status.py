"""The host's status: one plain dictionary for `--json`, the control socket and the trainer; one text for a person.

Every list in it is bounded: members by the roster, steps and leases by the pool, finished steps by their history.
`why.py` and `screen.py` are functions of this dictionary, so whatever they show is here. Seconds are CLOCK_BOOTTIME.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from aurora_p2p.lease.status import status_of

if TYPE_CHECKING:  # a status is also rendered where nothing of this runs
    from collections.abc import Mapping

    from aurora_p2p.host.desk import PublicationDesk
    from aurora_p2p.host.membership import Membership, MemberView
    from aurora_p2p.host.progress import ProgressBoard, Report
    from aurora_p2p.host.steps import StepEntry, StepHistory
    from aurora_p2p.lease.pool import WorkPool
    from aurora_p2p.net.drive import ExchangeDriver
    from aurora_p2p.types import PeerId, RunId
    from aurora_p2p.wire.trust import Delegation

SHARE_STEPS = 20
"""Finished steps that the shown share of waiting is a mean of."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """What a status looks at."""

    delegation: Delegation
    run: RunId
    desk: PublicationDesk
    members: Membership
    pool: WorkPool
    driver: ExchangeDriver
    progress: ProgressBoard
    steps: StepHistory


def snapshot(rooms: Rooms, *, now: float) -> dict[str, Any]:
    """Plain values only: it is printed as JSON."""
    newest = rooms.desk.newest
    work: dict[str, Any] = msgspec.to_builtins(status_of(rooms.pool.book, rooms.pool.fleet, now))
    exchange = rooms.driver.status()
    nodes = _nodes(rooms, work, exchange, now)
    return {
        "swarm": rooms.delegation.swarm,
        "run": rooms.run.hex(),
        "generation": rooms.delegation.generation,
        "roster_epoch": rooms.members.epoch,
        "members": list(rooms.members.peers),
        "version": newest.version if newest else -1,
        "seq": newest.seq if newest else 0,
        "publications": rooms.desk.completed,
        "publishing": rooms.desk.busy,
        "work": work,
        "exchange": exchange,
        "nodes": nodes,
        "pipeline": _pipeline(rooms, nodes, exchange, now),
        "trainer": _trainer(rooms.steps, now),
        "history": [_step(entry, now) for entry in rooms.steps.entries],
    }


def _nodes(rooms: Rooms, work: Mapping[str, Any], exchange: Mapping[str, Any], now: float) -> list[dict[str, Any]]:
    """One row for each member but the host, by region and peer id."""
    newest = rooms.desk.newest
    held = rooms.driver.holders(newest.artifact) if newest else {}
    segments = _newest_artifact(rooms, exchange).get("segments", 0)
    linked = {peer["peer"]: peer for peer in exchange["peers"] if peer["linked"]}
    working = {node["peer"]: node for node in work["nodes"]}
    rows = [
        {
            **_identity(peer, member, now),
            "linked": peer in linked,
            "rtt_ms": linked[peer]["rtt_ms"] if peer in linked else None,
            "has_percent": 100 * held[peer] // segments if segments and peer in held else None,
            **_work_of(working.get(peer, {}), rooms.progress.of(peer), now),
        }
        for peer, member in rooms.members.view().items()
    ]
    return sorted(rows, key=lambda row: (row["region"], row["peer"]))


def _identity(peer: PeerId, member: MemberView, now: float) -> dict[str, Any]:
    record = member.record
    return {
        "peer": peer,
        "region": member.region,
        "address": record.bulk[0] if record.bulk else "",
        "control": record.control[0] if record.control else "",
        "seen_seconds": now - member.seen,
    }


def _work_of(node: Mapping[str, Any], report: Report | None, now: float) -> dict[str, Any]:
    """What a node works on and with; `version` is the newest that it was seen or says to serve."""
    return {
        "version": max(node.get("version", -1), report.committed if report else -1),
        "active": node.get("active", False),
        "asked_seconds": node.get("asked_seconds"),
        "tokens_per_second": node.get("tokens_per_second"),
        "leased": node.get("leased", 0),
        "admitted": node.get("admitted", 0),
        "refused": node.get("reasons", {}),
        "withheld": node.get("withheld", 0),
        "progress": None if report is None else _progress(report, now),
    }


def _progress(report: Report, now: float) -> dict[str, Any]:
    fields = asdict(report)
    fields["age_seconds"] = now - fields.pop("at")
    return fields


def _newest_artifact(rooms: Rooms, exchange: Mapping[str, Any]) -> dict[str, Any]:
    """The exchange's figures of the newest complete publication; empty without one."""
    name = rooms.desk.newest.artifact.hex() if rooms.desk.newest else ""
    return next((dict(artifact) for artifact in exchange["artifacts"] if artifact["artifact"] == name), {})


def _pipeline(rooms: Rooms, nodes: list[dict[str, Any]], exchange: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Where the newest version is: extracted, spread, staged, committed."""
    desk, artifact = rooms.desk, _newest_artifact(rooms, exchange)
    version = desk.newest.version if desk.newest else -1
    writing = desk.under_way
    staged = [max(node["version"], (node["progress"] or {}).get("staged", -1)) for node in nodes]
    shares = [
        100 if reached >= version else node["has_percent"] or 0 for node, reached in zip(nodes, staged, strict=True)
    ]
    return {
        "version": version,
        "kind": desk.newest.kind if desk.newest else "",
        "bytes": artifact.get("bytes", 0),
        "segments": artifact.get("segments", 0),
        "sent_bytes": artifact.get("sent_bytes", 0),
        "extract_seconds": desk.extract_seconds,
        "extract": None
        if writing is None
        else {
            "version": writing.manifest.header.version,
            "bytes": writing.length,
            "bound": writing.manifest.header.size_bound,
            "seconds": now - writing.opened,
        },
        "nodes": len(nodes),
        "complete": sum(share == 100 for share in shares) if version >= 0 else 0,
        "spread_percent": sum(shares) // len(shares) if shares and version >= 0 else 0,
        "staged": sum(reached >= version for reached in staged) if version >= 0 else 0,
        "committed": sum(node["version"] >= version for node in nodes) if version >= 0 else 0,
    }


def _trainer(steps: StepHistory, now: float) -> dict[str, Any]:
    """wait_share: mean of the last finished steps, weighted by their seconds; None before the second StepDone."""
    timed = [entry for entry in list(steps.entries)[-SHARE_STEPS:] if entry.seconds > 0]
    seconds = sum(entry.seconds for entry in timed)
    waits_for = steps.waits_for
    return {
        "connections": steps.connections,
        "waits_for": waits_for,
        "waiting_seconds": steps.waiting_seconds(now),
        "wait_share": sum(entry.wait_share * entry.seconds for entry in timed) / seconds if seconds else None,
        "last_step": steps.entries[-1].step if steps.entries else None,
        "last_step_seconds": now - steps.entries[-1].at if steps.entries else None,
    }


def _step(entry: StepEntry, now: float) -> dict[str, Any]:
    return {
        "step": entry.step,
        "age_seconds": round(now - entry.at, 1),
        "seconds": round(entry.seconds, 3),
        "wait_share": round(entry.wait_share, 4),
        "reward": entry.reward,
        "tokens_per_second": round(entry.tokens_per_second, 1),
        "samples": entry.samples,
        "waited_seconds": round(entry.waited_seconds, 3),
        "trained_seconds": round(entry.trained_seconds, 3),
        "published_seconds": round(entry.published_seconds, 3),
    }


def render_status(snapshot: dict[str, Any]) -> str:
    """A few lines for a terminal."""
    work, exchange, pipeline = snapshot["work"], snapshot["exchange"], snapshot["pipeline"]
    version = snapshot["version"] if snapshot["version"] >= 0 else "none yet"
    lines = [
        f"swarm     {snapshot['swarm']}  generation {snapshot['generation']}",
        f"version   {version}  (seq {snapshot['seq']}, {snapshot['publications']} published since start)",
        f"roster    {len(snapshot['members'])} members, epoch {snapshot['roster_epoch']}",
        f"spread    {pipeline['complete']} of {pipeline['nodes']} nodes have it, {pipeline['staged']} staged it, "
        f"{pipeline['committed']} serve it",
        f"sent      {exchange['sent_bytes']:,} bytes   received {exchange['received_bytes']:,} bytes",
    ]
    if snapshot.get("ticket"):
        lines.append(f"ticket    {snapshot['ticket']}")
    for step in work["steps"]:
        rest = f"{step['leased']} leased, {step['open']} open"
        lines.append(f"step {step['step']:<5}{step['admitted']}/{step['total']} admitted, {rest}")
    for node in work["nodes"]:
        rate = f"{node['tokens_per_second']:.0f} tokens/s" if node["tokens_per_second"] else "not measured"
        lines.append(f"node {node['peer'][-8:]}  version {node['version']}  {rate}  {node['admitted']} admitted")
    for reason, count in sorted(work["refused"].items()):
        lines.append(f"refused   {reason}: {count}")
    return "\n".join(lines)
