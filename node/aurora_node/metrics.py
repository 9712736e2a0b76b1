"""A node's metrics: what it adds to its status, and every figure it shows to Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aurora_p2p.local.metrics import DISK_METRICS, PROCESS_METRICS, Metric, Reading, Status, at
from aurora_p2p.local.process import LoopLag, disk_status, process_status
from aurora_p2p.net.metrics import EXCHANGE_METRICS

PAUSES = ("", "owner", "hours", "busy-cpu", "busy-gpu", "battery", "disk", "memory")
"""What may pause a node; "" is none."""


class NodeMeter:
    """Process, disk and event loop. Run `lag.run` as a task."""

    def __init__(self, artifacts: Path) -> None:
        self.lag = LoopLag()
        self._artifacts = artifacts

    def status(self, used: int, quota: int) -> dict[str, Any]:
        """Plain values, to be merged into the node's status."""
        return {
            "disk": disk_status(self._artifacts, used, quota),
            "loop_lag": self.lag.status(),
            "process": process_status(),
        }


def _fresh(status: Status) -> Reading:
    return float(bool(status["fresh"]))


def _contradicted(status: Status) -> Reading:
    return float(bool(status["equivocation"]))


def _pause_sum(status: Status) -> Reading:
    return float(sum(status["pause_seconds"]))


def _working(status: Status) -> Reading:
    presence = status.get("presence") or {"working": True}
    return float(presence["working"])


def _paused(status: Status) -> Reading:
    presence = status.get("presence") or {"paused_by": ""}
    return {reason: float(presence["paused_by"] == reason) for reason in PAUSES if reason}


NODE_METRICS = (
    Metric(
        "aurora_node_head_age_seconds",
        "gauge",
        "Since the host's newest word was asked for.",
        at("head", "age_seconds"),
    ),
    Metric("aurora_node_fresh", "gauge", "1 while that is young enough to work on.", _fresh),
    Metric(
        "aurora_node_equivocation",
        "gauge",
        "1 once the publisher contradicted itself: no work is taken.",
        _contradicted,
    ),
    Metric("aurora_node_version", "gauge", "Version served; -1 before the first.", at("version")),
    Metric("aurora_node_newest_version", "gauge", "Newest version that is staged or served.", at("newest")),
    Metric("aurora_node_working", "gauge", "1 unless paused.", _working),
    Metric("aurora_node_paused", "gauge", "1 for what pauses the node now.", _paused, "reason"),
    Metric("aurora_node_engine_restarts_total", "counter", "Engines replaced.", at("engine_restarts")),
    Metric("aurora_node_commits_total", "counter", "Versions committed between leases.", at("commits")),
    Metric("aurora_node_digest_audits_total", "counter", "Digests recomputed from served memory.", at("digest_audits")),
    Metric("aurora_node_digest_mismatches_total", "counter", "Digests that were wrong.", at("digest_mismatches")),
    Metric("aurora_node_failures_total", "counter", "Artifacts that could not be staged.", at("failures")),
    Metric(
        "aurora_node_recent_pause_seconds",
        "gauge",
        "Sum, over the last commits, of the time from the last token before to the first after.",
        _pause_sum,
    ),
    Metric(
        "aurora_node_waited_seconds_total",
        "counter",
        "Time the engine stood idle between hearing of newer weights and serving them.",
        at("waited_seconds"),
    ),
    Metric(
        "aurora_node_transfer_seconds_total",
        "counter",
        "Over artifacts: from the first word of one to all of it.",
        at("transfer_seconds"),
    ),
    Metric("aurora_node_stage_seconds_total", "counter", "Time spent staging.", at("stage_seconds")),
    Metric("aurora_node_commit_seconds_total", "counter", "Time spent committing.", at("commit_seconds")),
    Metric("aurora_node_folds_total", "counter", "Times that stored deltas were folded.", at("folds", "folded")),
    Metric("aurora_node_rebuilds_total", "counter", "Snapshots rebuilt for newcomers.", at("folds", "rebuilt")),
    Metric("aurora_node_leases_total", "counter", "Leases worked on.", at("leases")),
    Metric("aurora_node_samples_total", "counter", "Samples generated.", at("samples")),
    Metric("aurora_node_tokens_total", "counter", "Tokens generated.", at("tokens")),
    Metric(
        "aurora_node_tokens_per_second", "gauge", "Speed of the engine, averaged over leases.", at("tokens_per_second")
    ),
    Metric("aurora_node_admitted_total", "counter", "Samples that the host admitted.", at("admitted")),
    Metric("aurora_node_refused_total", "counter", "Samples that it did not.", at("refused"), "reason"),
    *EXCHANGE_METRICS,
    *DISK_METRICS,
    *PROCESS_METRICS,
)
