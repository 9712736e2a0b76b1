"""Every metric of a node finds its place in the status that the daemon gives."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from aurora_node.config import NodeConfig
from aurora_node.metrics import NODE_METRICS, NodeMeter
from aurora_p2p.host.programs import Programs
from aurora_p2p.local.config import render_config
from aurora_p2p.local.metrics import expose
from aurora_p2p.wire.ticket import Ticket
from tests.host.world import NODES, SWARM
from tests.node.parts import snapshot_of

WORKING = {"working": True, "paused_by": "", "detail": "", "until": ""}


def families_of(folder: Path, **changes: Any) -> dict[str, Any]:
    """The families exposed of a node that has just started; what the daemon adds is added as it does."""
    meter = NodeMeter(folder)

    async def look() -> dict[str, Any]:
        return meter.status(10, 100)

    folds = {"folded": 0, "rebuilt": 0, "rebuilding": None, "rebuild_failed": ""}
    added = {"fresh": False, "engine_restarts": 0, "equivocation": False, "presence": WORKING, "folds": folds}
    status = snapshot_of(folder, pauses=[0.5, 0.25]) | trio.run(look) | added | changes
    text = expose(NODE_METRICS, status).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_all_but_what_is_not_known_yet_is_shown(tmp_path: Path) -> None:
    families = families_of(tmp_path)
    unknown = {"aurora_node_head_age_seconds", "aurora_node_tokens_per_second"}
    assert {metric.name.removesuffix("_total") for metric in NODE_METRICS} - set(families) == unknown
    values = {name: family.samples[0].value for name, family in families.items() if family.samples}
    assert values["aurora_node_recent_pause_seconds"] == 0.75
    assert (values["aurora_disk_used_bytes"], values["aurora_disk_quota_bytes"]) == (10, 100)
    assert values["aurora_process_resident_bytes"] > 1 << 20
    assert values["aurora_process_tasks"] >= 1
    assert (values["aurora_node_working"], values["aurora_node_fresh"]) == (1, 0)


def test_a_pause_is_shown_under_its_reason(tmp_path: Path) -> None:
    families = families_of(tmp_path, presence=WORKING | {"working": False, "paused_by": "hours"})
    paused = {sample.labels["reason"]: sample.value for sample in families["aurora_node_paused"].samples}
    assert {reason for reason, value in paused.items() if value} == {"hours"}
    assert families["aurora_node_working"].samples[0].value == 0


@pytest.mark.slow
def test_a_running_node_serves_them_while_it_looks_for_a_host(tmp_path: Path) -> None:
    home = tmp_path / "node"
    home.mkdir()
    config = NodeConfig(
        listen=("/ip4/127.0.0.1/tcp/0",), bulk_listen="127.0.0.1:0", engine="simulated", metrics_listen="127.0.0.1:0"
    )
    (home / "node.toml").write_text(render_config(config, "test"))
    with socket.create_server(("127.0.0.1", 0)) as mute, Programs(tmp_path) as programs:
        address = f"/ip4/127.0.0.1/tcp/{mute.getsockname()[1]}/p2p/{NODES[1].peer}"
        ticket = Ticket(SWARM, hosts=(address,), local=("127.0.0.0/8",))
        node = programs.start("node", ["aurora-node", "join", str(ticket)])
        url = node.wait_for("metrics", 60.0)["url"]
        with urllib.request.urlopen(url, timeout=10.0) as answer:  # noqa: S310 - our own address
            text = answer.read().decode()
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert families["aurora_node_version"][0].value == -1
    assert families["aurora_node_fresh"][0].value == 0
    assert families["aurora_process_resident_bytes"][0].value > 1 << 20
