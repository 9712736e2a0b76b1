"""A node's status: one plain dictionary for `--json`, the control socket and the screen; one text for a person.

    snapshot(...)        collects, inside the daemon
    render_status(...)   a few lines, wherever the dictionary has got to

Everything in it is bounded: peers by the roster, artifacts by SHOWN_ARTIFACTS, segment maps by MAP_CELLS. Seconds and
bytes are since the daemon's start unless their name says otherwise; a duration that is not known is None.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aurora_node.why import unpublished
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.output import clean
from aurora_p2p.local.screen.figures import UNKNOWN, age, coverage, rate, short, size

if TYPE_CHECKING:  # a status is also rendered where nothing of this runs
    from aurora_node.link import HostLink
    from aurora_node.weights import Weights
    from aurora_node.work import WorkFigures
    from aurora_p2p.artifact.manifest import Manifest
    from aurora_p2p.net.drive import ExchangeDriver
    from aurora_p2p.types import PeerId

MAX_LINE = 500
"""Letters of a line for a person."""
MAP_CELLS = 192
"""Stretches of the segment map: about as many as the widest screen has columns."""


def snapshot(
    peer: PeerId, link: HostLink, weights: Weights, work: WorkFigures, driver: ExchangeDriver
) -> dict[str, Any]:
    """Plain values only: it is printed as JSON. The daemon adds what it alone knows (fresh, presence, disk, log)."""
    now, held, figures = boottime(), weights.held, weights.figures
    return {
        "peer": peer,
        "swarm": link.trust.swarm,
        "host": link.host,
        "member": link.is_member,
        "tried": link.tried,
        "head": _head(link, now),
        "roster_epoch": link.trust.roster.epoch if link.trust.roster else 0,
        "uptime_seconds": now - work.started,
        "version": held.version if held else -1,
        "version_age_seconds": now - weights.held_since if held else None,
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
        **_work(work, now),
        **_transfer(weights.fetching, link, driver),
    }


def _head(link: HostLink, now: float) -> dict[str, Any]:
    """The host's newest word: what it names, and how long ago it was asked for."""
    head = link.trust.head
    return {
        "age_seconds": link.trust.head_age(now),
        "version": head.version if head else -1,
        "seq": head.seq if head else 0,
        "generation": link.trust.floor.generation,
    }


def _work(work: WorkFigures, now: float) -> dict[str, Any]:
    return {
        "tokens_per_second": work.tokens_per_second,
        "recent_tokens_per_second": work.recent.rates(now),
        "tokens": work.tokens,
        "samples": work.samples,
        "leases": work.leases,
        "lease": {
            "step": work.lease_step,
            "done": work.lease_done,
            "size": work.lease_size,
            "seconds_left": max(work.lease_ends - now, 0.0) if work.lease_ends else None,
        },
        "admitted": work.admitted,
        "refused": dict(work.refused),
    }


def _transfer(wanted: Manifest | None, link: HostLink, driver: ExchangeDriver) -> dict[str, Any]:
    """The data plane, the artifact in flight, and how much each peer has of it (else of the newest one)."""
    exchange = driver.status()
    newest = exchange["artifacts"][0]["artifact"] if exchange["artifacts"] else ""
    shown = wanted.artifact if wanted is not None else bytes.fromhex(newest)
    have, total = driver.reach_of(shown)  # type: ignore[arg-type]
    holders = driver.holders(shown)  # type: ignore[arg-type]
    members = link.trust.roster.peers if link.trust.roster else {}
    for one in exchange["peers"]:
        held = holders.get(one["peer"])
        one["has_percent"] = 100 * held // total if held is not None and total else None
        one["region"] = members[one["peer"]].region if one["peer"] in members else None
    fetching = None
    if wanted is not None:
        fetching = {
            "version": wanted.header.version,
            "kind": wanted.header.kind,
            "have": have.bit_count(),
            "segments": total,
            "segment_bytes": wanted.header.segment_bytes,
            "coverage": coverage(have, total, MAP_CELLS),
            "holders": sum(one["has_percent"] is not None for one in exchange["peers"]),
        }
    return {"exchange": exchange, "fetching": fetching}


def speed_unit(snapshot: Mapping[str, Any]) -> str:
    """An engine that invents tokens says so wherever its speed is shown."""
    simulated = str(snapshot.get("engine", "")).partition(":")[0] == "simulated"
    return "tokens/s (simulated)" if simulated else "tokens/s"


def render_status(snapshot: Mapping[str, Any]) -> str:
    """A few lines for a terminal."""
    speed, exchange, lease = snapshot["tokens_per_second"], snapshot["exchange"], snapshot["lease"]
    fresh = "" if snapshot["fresh"] or unpublished(snapshot) else "  (no fresh HEAD)"
    lines = [
        f"peer      {snapshot['peer']}",
        f"swarm     {snapshot['swarm']}  up {age(snapshot['uptime_seconds'])}",
        _version(snapshot),
        f"state     {snapshot['state']}{fresh}",
        f"speed     {speed:.0f} {speed_unit(snapshot)}" if speed else "speed     not measured yet",
        f"samples   {snapshot['admitted']} admitted of {snapshot['samples']} generated, in {snapshot['leases']} leases",
        f"sent      {exchange['sent_bytes']:,} bytes   received {exchange['received_bytes']:,} bytes",
    ]
    if lease["seconds_left"] is not None:
        lines.append(
            f"lease     step {lease['step']}: {lease['done']}/{lease['size']}, {age(lease['seconds_left'])} left"
        )
    fetching = snapshot["fetching"]
    if fetching is not None:
        lines.append(f"fetching  version {fetching['version']}: {fetching['have']} of {fetching['segments']} segments")
    lines += [_peer(peer) for peer in exchange["peers"] if peer["linked"]]
    lines += [f"banned    ...{short(peer)} for {age(left)}" for peer, left in sorted(exchange["banned"].items())]
    lines += [f"refused   {reason}: {count}" for reason, count in sorted(snapshot["refused"].items())]
    if snapshot["problem"]:
        lines.append(f"problem   {snapshot['problem']}")
    return "\n".join(clean(line, MAX_LINE) for line in lines)


def _version(snapshot: Mapping[str, Any]) -> str:
    if snapshot["version"] < 0:
        return "version   none yet" + (f"  (staged {snapshot['newest']})" if snapshot["newest"] >= 0 else "")
    audited = f"audited {snapshot['audited']}, " if snapshot["audited"] >= 0 else ""
    served = f"served for {age(snapshot['version_age_seconds'])}"
    return f"version   {snapshot['version']}  (newest staged {snapshot['newest']}, {audited}{served})"


def _peer(peer: Mapping[str, Any]) -> str:
    has = UNKNOWN if peer["has_percent"] is None else f"{peer['has_percent']} %"
    rates = f"down {rate(peer['down_rate'])}  up {rate(peer['up_rate'])}"
    return f"link      ...{short(peer['peer'])}  {peer['address']}  {rates}  has {has}  {size(peer['sent_bytes'])} sent"
