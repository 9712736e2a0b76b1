"""What the host counts at the pool's door, and that every metric finds its place in a real status."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from aurora_p2p.host.metrics import HOST_METRICS, HostMeter
from aurora_p2p.host.programs import Programs, run_once
from aurora_p2p.host.upkeep import Upkeep
from aurora_p2p.lease.events import From
from aurora_p2p.local.metrics import expose
from aurora_p2p.local.output import Output
from aurora_p2p.wire.control import Lease, LeaseRequest
from tests.host.world import SEGMENT, open_host
from tests.lease.world import NODES, World, manifest_of, prompts_of

ONE, TWO = NODES[:2]


class Metered(World):
    """A pool whose asks are metered."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.meter = HostMeter(folder)

    def metered_ask(self, node: Any) -> Any:
        answer = self.ask(node)
        request = LeaseRequest(bytes(32), self.pool.run, 0, manifest_of(0), bytes(32), 0.0, 1)  # type: ignore[arg-type]
        self.meter.happened(From(node.peer, request), self.effects, now=self.now)
        return answer

    def counts(self) -> Any:
        async def look() -> Any:
            return self.meter.status(0, 0, now=self.now)["counts"]

        return trio.run(look)


@pytest.fixture
def world(tmp_path: Path) -> Metered:
    world = Metered(tmp_path)
    world.publish(0)
    return world


def test_a_node_starves_from_the_ask_that_found_nothing_to_its_next_lease(world: Metered) -> None:
    world.metered_ask(ONE)
    world.now += 3.0
    world.metered_ask(ONE)
    assert (world.counts()["starving"], world.counts()["starved_seconds"]) == (1, 3.0)
    world.submit_prompts(0, 4, 2)
    world.now += 1.0
    assert isinstance(world.metered_ask(ONE), Lease)
    world.now += 10.0
    assert (world.counts()["starving"], world.counts()["starved_seconds"]) == (0, 4.0)


def test_starving_nodes_add_up(world: Metered) -> None:
    world.metered_ask(ONE)
    world.metered_ask(TWO)
    world.now += 2.0
    assert (world.counts()["starving"], world.counts()["starved_seconds"]) == (2, 4.0)


def test_a_node_that_never_comes_back_is_forgotten(world: Metered) -> None:
    world.metered_ask(ONE)
    world.now += 10_000.0
    starved = world.counts()["starved_seconds"]
    world.now += 10_000.0
    assert (world.counts()["starving"], world.counts()["starved_seconds"]) == (0, starved)


def test_leases_samples_and_tokens_are_counted_once(world: Metered) -> None:
    world.submit_prompts(0, 1, 2)
    lease = world.metered_ask(ONE)
    world.work_off(ONE, lease)
    world.meter.happened(None, world.effects, now=world.now)
    counts = world.counts()
    assert (counts["leases"], counts["admitted"], counts["tokens"]) == (1, 2, 6)


def test_every_metric_of_the_host_is_found_in_its_status(tmp_path: Path) -> None:
    async def look() -> dict[str, Any]:
        async with open_host(tmp_path) as host:
            meter = HostMeter(host.store.root)
            await host.publish(0)
            meter.published(now=0.0)
            await host.pool_door.handle(prompts_of(0, 3, 2))
            status = host.status()
            status["exchange"] |= {"disk_paused": False, "handshakes_refused": {}}
            metered = meter.status(host.store.reserved_bytes, host.store.quota_bytes, now=5.0)
            folds = Upkeep(host.desk, host.store, SEGMENT, 0, Output(as_json=True)).status()
            beside = {"ledger": host.ledger.status(), "aborts": host.desk.aborted, "folds": folds}
            return status | metered | beside

    text = expose(HOST_METRICS, trio.run(look)).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    later = {"aurora_host_trainer_wait_share"}
    expected = {metric.name.removesuffix("_total") for metric in HOST_METRICS}
    assert expected - set(families) == later
    states = {sample.labels["state"]: sample.value for sample in families["aurora_host_samples"].samples}
    assert states == {"open": 6.0, "leased": 0.0, "admitted": 0.0}
    assert families["aurora_host_ledger_commits"].samples[0].value >= 1
    assert families["aurora_host_head_age_seconds"].samples[0].value == 5.0


@pytest.mark.slow
def test_a_running_host_serves_them(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        home = tmp_path / "host"
        where = ["--listen", "/ip4/127.0.0.1/tcp/0", "--bulk-listen", "127.0.0.1:0"]
        run_once(["aurora-host", "init", "--home", str(home), *where])
        settings = (home / "run.toml").read_text().replace('metrics_listen = ""', 'metrics_listen = "127.0.0.1:0"')
        (home / "run.toml").write_text(settings)
        url = programs.start("host", ["aurora-host", "run"]).wait_for("metrics", 60.0)["url"]
        with urllib.request.urlopen(url, timeout=10.0) as answer:  # noqa: S310 - our own address
            text = answer.read().decode()
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert families["aurora_host_version"][0].value == -1
    assert families["aurora_host_members"][0].value == 1
    assert families["aurora_process_open_fds"][0].value > 5
    assert families["aurora_disk_free_bytes"][0].value > 0
