"""A bootstrap's status, and every figure it shows to Prometheus."""

from __future__ import annotations

from typing import Any

from aurora_p2p.local.metrics import PROCESS_METRICS, Metric, at
from aurora_p2p.local.process import LoopLag, process_status
from aurora_p2p.net.host import ControlHost
from aurora_p2p.net.rendezvous import Registry


def snapshot(host: ControlHost, registry: Registry, lag: LoopLag) -> dict[str, Any]:
    """Plain values, as JSON shows them. Registrations are counted until they are swept or replaced."""
    return {
        "peer": host.peer,
        "registrations": len(registry),
        "namespaces": registry.namespaces,
        "requests": dict(registry.asked),
        "refused": dict(registry.refused),
        "connections": host.connections,
        "loop_lag": lag.status(),
        "process": process_status(),
    }


BOOTSTRAP_METRICS = (
    Metric("aurora_bootstrap_registrations", "gauge", "Peers registered, in all swarms.", at("registrations")),
    Metric("aurora_bootstrap_namespaces", "gauge", "Swarms that somebody is registered for.", at("namespaces")),
    Metric("aurora_bootstrap_requests_total", "counter", "Requests by kind.", at("requests"), "kind"),
    Metric("aurora_bootstrap_refused_total", "counter", "Requests refused.", at("refused"), "reason"),
    Metric("aurora_bootstrap_connections", "gauge", "Open libp2p connections.", at("connections")),
    *PROCESS_METRICS,
)
