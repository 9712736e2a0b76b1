"""A swarm host's metrics: what it counts beside its machines, and every figure it shows to Prometheus.

HostMeter counts what passes the pool's door (grants, admissions, refusals to ask again), and adds process, disk and
event loop to the status. HOST_METRICS reads all of it from that status.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aurora_p2p.host.membership import GONE_SECONDS
from aurora_p2p.lease.events import Effect, Event, From, LeaseGranted, Persist, Reply, SampleAdmitted
from aurora_p2p.local.metrics import DISK_METRICS, PROCESS_METRICS, Metric, Reading, Status, at
from aurora_p2p.local.process import LoopLag, disk_status, process_status
from aurora_p2p.net.metrics import EXCHANGE_METRICS
from aurora_p2p.types import PeerId
from aurora_p2p.wire.control import Reason, Refusal


class HostMeter:
    """Counters since the start. Seconds are CLOCK_BOOTTIME."""

    def __init__(self, artifacts: Path) -> None:
        self.lag = LoopLag()
        self._artifacts = artifacts
        self._leases = self._admitted = self._tokens = 0
        self._starved = 0.0
        self._waiting: dict[PeerId, float] = {}
        """Peers told that there is no work, and since when."""
        self._published_at: float | None = None

    def happened(self, event: Event | None, effects: Iterable[Effect], *, now: float) -> None:
        """What the pool made of an event, once the ledger has kept it."""
        for effect in effects:
            match effect:
                case Persist(LeaseGranted(lessee=peer)):
                    self._leases += 1
                    self._fed(peer, now)
                case Persist(SampleAdmitted(result=result)):
                    self._admitted += 1
                    self._tokens += len(result.tokens)
                case Reply(Refusal(Reason.NO_WORK)) if isinstance(event, From):
                    if event.peer not in self._waiting:
                        self._forget(now)
                        self._waiting[event.peer] = now

    def _fed(self, peer: PeerId, now: float) -> None:
        since = self._waiting.pop(peer, None)
        if since is not None:
            self._starved += now - since

    def published(self, *, now: float) -> None:
        """A publication is complete: HEAD is young again."""
        self._published_at = now

    def status(self, used: int, quota: int, *, now: float) -> dict[str, Any]:
        """Plain values, to be merged into the host's status."""
        self._forget(now)
        return {
            "head_age_seconds": None if self._published_at is None else now - self._published_at,
            "counts": {
                "leases": self._leases,
                "admitted": self._admitted,
                "tokens": self._tokens,
                "starved_seconds": self._starved + sum(now - since for since in self._waiting.values()),
                "starving": len(self._waiting),
            },
            "disk": disk_status(self._artifacts, used, quota),
            "loop_lag": self.lag.status(),
            "process": process_status(),
        }

    def _forget(self, now: float) -> None:
        """A node that never came back for work waited until it was gone."""
        for peer in [peer for peer, since in self._waiting.items() if now - since > 10 * GONE_SECONDS]:
            self._fed(peer, now)


def _samples(status: Status) -> Reading:
    total: Counter[str] = Counter(open=0, leased=0, admitted=0)
    for step in status["work"]["steps"]:
        for state in total:
            total[state] += step[state]
    return total


def _rate(status: Status) -> Reading:
    nodes = status["work"]["nodes"]
    return float(sum(node["tokens_per_second"] or 0.0 for node in nodes if node["active"]))


def _members(status: Status) -> Reading:
    return float(len(status["members"]))


def _active(status: Status) -> Reading:
    return float(sum(node["active"] for node in status["work"]["nodes"]))


def _trainer_share(status: Status) -> Reading:
    trainer = status.get("trainer") or {}
    share = trainer.get("wait_share")
    return share if isinstance(share, int | float) else None


HOST_METRICS = (
    Metric("aurora_host_head_age_seconds", "gauge", "Since the newest version was published.", at("head_age_seconds")),
    Metric("aurora_host_version", "gauge", "Newest published version; -1 before the first.", at("version")),
    Metric("aurora_host_seq", "gauge", "Its sequence number.", at("seq")),
    Metric("aurora_host_generation", "gauge", "Generation of the delegation in force.", at("generation")),
    Metric("aurora_host_publications_total", "counter", "Publications completed.", at("publications")),
    Metric("aurora_host_publications_aborted_total", "counter", "Publications given up.", at("aborts")),
    Metric("aurora_host_squashes_total", "counter", "Squashed deltas published for laggards.", at("folds", "squashes")),
    Metric("aurora_host_snapshots_total", "counter", "Snapshots made for late joiners.", at("folds", "snapshots")),
    Metric("aurora_host_members", "gauge", "Members of the roster, this host among them.", _members),
    Metric("aurora_host_nodes_active", "gauge", "Nodes that hold a lease or asked for one just now.", _active),
    Metric("aurora_host_nodes_starving", "gauge", "Nodes that asked and found no work.", at("counts", "starving")),
    Metric(
        "aurora_host_starved_seconds_total",
        "counter",
        "Node-seconds between an ask that found no work and the next lease.",
        at("counts", "starved_seconds"),
    ),
    Metric(
        "aurora_host_trainer_wait_share", "gauge", "Share of a step the trainer waited, 0 to 1, lately.", _trainer_share
    ),
    Metric("aurora_host_samples", "gauge", "Samples of the steps at work, by state.", _samples, "state"),
    Metric("aurora_host_leases_total", "counter", "Leases granted.", at("counts", "leases")),
    Metric("aurora_host_admitted_total", "counter", "Samples admitted.", at("counts", "admitted")),
    Metric(
        "aurora_host_refused_total",
        "counter",
        "Results refused in this run, over restarts.",
        at("work", "refused"),
        "reason",
    ),
    Metric("aurora_host_tokens_total", "counter", "Tokens of admitted samples.", at("counts", "tokens")),
    Metric("aurora_host_tokens_per_second", "gauge", "Sum of the active nodes' measured speeds.", _rate),
    Metric("aurora_host_ledger_commits_total", "counter", "Transactions synced to disk.", at("ledger", "commits")),
    Metric("aurora_host_ledger_seconds_total", "counter", "Time they took.", at("ledger", "seconds")),
    Metric("aurora_host_ledger_last_seconds", "gauge", "The last one.", at("ledger", "last_seconds")),
    Metric("aurora_host_ledger_max_seconds", "gauge", "The slowest since the start.", at("ledger", "max_seconds")),
    Metric("aurora_host_ledger_queued", "gauge", "Records that wait for the disk.", at("ledger", "queued")),
    *EXCHANGE_METRICS,
    *DISK_METRICS,
    *PROCESS_METRICS,
)
