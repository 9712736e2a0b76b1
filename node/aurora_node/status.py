"""A node's status: one plain dictionary for `--json` and the control socket; one text for a person."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a status is also rendered where nothing of this runs
    from aurora_node.link import HostLink
    from aurora_node.weights import Weights
    from aurora_node.work import WorkFigures
    from aurora_p2p.net.drive import ExchangeDriver
    from aurora_p2p.types import PeerId


def snapshot(
    peer: PeerId, link: HostLink, weights: Weights, work: WorkFigures, driver: ExchangeDriver
) -> dict[str, Any]:
    """Plain values only: it is printed as JSON. Seconds and bytes are since the daemon's start."""
    held, figures = weights.held, weights.figures
    return {
        "peer": peer,
        "host": link.host,
        "roster_epoch": link.trust.roster.epoch if link.trust.roster else 0,
        "version": held.version if held else -1,
        "newest": weights.newest,
        "digest": held.digest.hex() if held and held.digest else "",
        "audited": weights.audited,
        "state": work.state,
        "problem": weights.problem,
        "commits": figures.commits,
        "digest_audits": figures.audits,
        "digest_mismatches": figures.audit_mismatches,
        "failures": figures.failures,
        "transfer_seconds": figures.transfer_seconds,
        "waited_seconds": figures.waited_seconds,
        "stage_seconds": figures.stage_seconds,
        "commit_seconds": figures.commit_seconds,
        "pause_seconds": list(figures.pauses),
        "pause_p50_ms": 1000 * statistics.median(figures.pauses) if figures.pauses else None,
        "tokens_per_second": work.tokens_per_second,
        "tokens": work.tokens,
        "samples": work.samples,
        "leases": work.leases,
        "lease": {"step": work.lease_step, "done": work.lease_done, "size": work.lease_size},
        "admitted": work.admitted,
        "refused": dict(work.refused),
        "exchange": driver.status(),
    }


def render_status(snapshot: dict[str, Any]) -> str:
    """A few lines for a terminal."""
    rate = snapshot["tokens_per_second"]
    exchange = snapshot["exchange"]
    lines = [
        f"peer      {snapshot['peer']}",
        f"version   {snapshot['version']}  (newest staged {snapshot['newest']}, audited {snapshot['audited']})",
        f"state     {snapshot['state']}{'' if snapshot['fresh'] else '  (no fresh HEAD)'}",
        f"speed     {rate:.0f} tokens/s" if rate else "speed     not measured yet",
        f"samples   {snapshot['admitted']} admitted of {snapshot['samples']} generated, in {snapshot['leases']} leases",
        f"sent      {exchange['sent_bytes']:,} bytes   received {exchange['received_bytes']:,} bytes",
    ]
    lines += [f"refused   {reason}: {count}" for reason, count in sorted(snapshot["refused"].items())]
    if snapshot["problem"]:
        lines.append(f"problem   {snapshot['problem']}")
    return "\n".join(lines)
