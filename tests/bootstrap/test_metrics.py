"""A bootstrap as an operator runs it, with its metrics on: a scraper of this machine reads what its visitors did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from aurora_bootstrap.config import BootstrapConfig
from aurora_bootstrap.metrics import BOOTSTRAP_METRICS
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import RefusedError, UsageError
from aurora_p2p.local.config import render_config
from aurora_p2p.local.control import ask, socket_path
from aurora_p2p.local.metrics import serve_metrics
from aurora_p2p.local.output import Output
from aurora_p2p.net.host import open_control_host
from aurora_p2p.net.rendezvous import advertise, discover

LONG = 60.0


async def visit(address: str) -> None:
    """One newcomer registers twice, asks for others, and is refused once."""
    async with open_control_host(Identity.generate(), ["/ip4/127.0.0.1/tcp/0"], gossip=False) as host:
        peer = await host.connect(address, seconds=LONG)
        await advertise(host, peer, "swarm", seconds=LONG)
        await advertise(host, peer, "swarm", seconds=LONG)
        await discover(host, peer, "swarm", seconds=LONG)
        with pytest.raises(RefusedError):
            await advertise(host, peer, "x" * 300, seconds=LONG)


def scrape(url: str) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(url, timeout=LONG) as answer:  # noqa: S310 - our own address
        families = text_string_to_metric_families(answer.read().decode())
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


@pytest.mark.slow
def test_a_scraper_reads_what_visitors_did(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    config = BootstrapConfig(listen=("/ip4/127.0.0.1/tcp/0",), metrics_listen="127.0.0.1:0")
    (home / "bootstrap.toml").write_text(render_config(config, "test"))
    process = subprocess.Popen(
        [sys.executable, "-m", "aurora_bootstrap.cli", "serve", "--home", str(home), "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        (address,) = json.loads(process.stdout.readline())["addresses"]
        url = json.loads(process.stdout.readline())["url"]
        trio.run(visit, address)
        found = scrape(url)
        status = ask(socket_path(home, "control"), "status")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LONG)
    assert found["aurora_bootstrap_registrations",] == status["registrations"] == 1
    assert found["aurora_bootstrap_namespaces",] == 1
    assert found["aurora_bootstrap_requests_total", "register"] == 3
    assert found["aurora_bootstrap_requests_total", "discover"] == 1
    assert found["aurora_bootstrap_refused_total", "invalid_namespace"] == 1
    assert found["aurora_process_resident_bytes",] > 1 << 20
    assert found["aurora_process_tasks",] > 0
    assert {name for name, *_ in found} == {metric.name for metric in BOOTSTRAP_METRICS}
    assert process.returncode == 0


def test_a_public_address_is_refused_before_anything_listens() -> None:
    async def nothing() -> dict[str, object]:
        return {}

    with pytest.raises(UsageError, match="metrics_listen"):
        trio.run(serve_metrics, "0.0.0.0:9461", BOOTSTRAP_METRICS, nothing, Output(as_json=True))
