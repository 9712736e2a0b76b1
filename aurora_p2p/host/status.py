"""The host's status: one plain dictionary for `--json`, the control socket and the trainer; one text for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from aurora_p2p.lease.status import status_of
from aurora_p2p.local.clock import boottime

if TYPE_CHECKING:  # a status is also rendered where nothing of this runs
    from aurora_p2p.host.desk import PublicationDesk
    from aurora_p2p.host.membership import Membership
    from aurora_p2p.lease.pool import WorkPool
    from aurora_p2p.net.drive import ExchangeDriver
    from aurora_p2p.types import RunId
    from aurora_p2p.wire.trust import Delegation


def snapshot(
    delegation: Delegation,
    run: RunId,
    desk: PublicationDesk,
    members: Membership,
    pool: WorkPool,
    driver: ExchangeDriver,
) -> dict[str, Any]:
    """Plain values only: it is printed as JSON."""
    newest = desk.newest
    work: dict[str, Any] = msgspec.to_builtins(status_of(pool.book, pool.fleet, boottime()))
    return {
        "swarm": delegation.swarm,
        "run": run.hex(),
        "generation": delegation.generation,
        "roster_epoch": members.epoch,
        "members": list(members.peers),
        "version": newest.version if newest else -1,
        "seq": newest.seq if newest else 0,
        "publications": desk.completed,
        "publishing": desk.busy,
        "work": work,
        "exchange": driver.status(),
    }


def render_status(snapshot: dict[str, Any]) -> str:
    """A few lines for a terminal."""
    work, exchange = snapshot["work"], snapshot["exchange"]
    lines = [
        f"swarm     {snapshot['swarm']}  generation {snapshot['generation']}",
        f"version   {snapshot['version']}  (seq {snapshot['seq']}, {snapshot['publications']} published since start)",
        f"roster    {len(snapshot['members'])} members, epoch {snapshot['roster_epoch']}",
        f"sent      {exchange['sent_bytes']:,} bytes   received {exchange['received_bytes']:,} bytes",
    ]
    for step in work["steps"]:
        rest = f"{step['leased']} leased, {step['open']} open"
        lines.append(f"step {step['step']:<5}{step['admitted']}/{step['total']} admitted, {rest}")
    for node in work["nodes"]:
        rate = f"{node['tokens_per_second']:.0f} tokens/s" if node["tokens_per_second"] else "not measured"
        lines.append(f"node {node['peer'][-8:]}  version {node['version']}  {rate}  {node['admitted']} admitted")
    for reason, count in sorted(work["refused"].items()):
        lines.append(f"refused   {reason}: {count}")
    return "\n".join(lines)
