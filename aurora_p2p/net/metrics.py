"""What the segment exchange shows to Prometheus, in a host and in a node: read from ExchangeDriver.status()."""

from __future__ import annotations

from aurora_p2p.local.metrics import Metric, Reading, Status, at


def _linked(status: Status) -> Reading:
    return float(sum(peer["linked"] for peer in status["exchange"]["peers"]))


def _banned(status: Status) -> Reading:
    return float(len(status["exchange"]["banned"]))


def _paused(status: Status) -> Reading:
    return float(status["exchange"]["disk_paused"])


EXCHANGE_METRICS = (
    Metric("aurora_exchange_peers_linked", "gauge", "Peers with an open data link.", _linked),
    Metric("aurora_exchange_peers_banned", "gauge", "Peers banned here now.", _banned),
    Metric("aurora_exchange_sent_bytes_total", "counter", "Segment payload sent.", at("exchange", "sent_bytes")),
    Metric(
        "aurora_exchange_received_bytes_total", "counter", "Segment payload received.", at("exchange", "received_bytes")
    ),
    Metric(
        "aurora_exchange_segments_total",
        "counter",
        "Segments: `origin` and `peers` are verified ones by where they came from, `sent` those sent.",
        at("exchange", "segments"),
        "way",
    ),
    Metric(
        "aurora_exchange_refused_total",
        "counter",
        "What peers sent and was refused.",
        at("exchange", "refused"),
        "reason",
    ),
    Metric(
        "aurora_exchange_handshakes_refused_total",
        "counter",
        "Connections to the data plane refused, since its process started.",
        at("exchange", "handshakes_refused"),
        "fault",
    ),
    Metric("aurora_exchange_restarts_total", "counter", "Bulk processes replaced.", at("exchange", "restarts")),
    Metric("aurora_exchange_paused", "gauge", "1 while the disk takes no more segments.", _paused),
)
