"""Real nodes that pause, resume, keep their hours and leave, in a swarm of real processes with the simulated engine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psutil
import pytest

from aurora_p2p.host.programs import Program, descendants, wait_until
from aurora_p2p.local.clock import OFFSET, boottime
from aurora_p2p.local.control import ask, socket_path
from benchmarks.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LONG = 60.0
DAY_SECONDS = 86_400
NODE = "node0"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet.open(tmp_path_factory.mktemp("fleet"), nodes=2, pause=0.2) as running:
        yield running


@pytest.fixture(autouse=True)
def _as_it_was(fleet: Fleet) -> Iterator[None]:
    """Each test finds the node at work, with the settings of a new one."""
    settings = home(fleet) / "node.toml"
    before = settings.read_text()
    yield
    (home(fleet) / "paused").unlink(missing_ok=True)
    settings.write_text(before)
    fleet.restart(NODE)
    wait_until(lambda: at_work(fleet), LONG, "the node at work again")


def home(fleet: Fleet) -> Any:
    return fleet.running[NODE].home


def tell(fleet: Fleet, command: str, **words: Any) -> dict[str, Any]:
    return ask(socket_path(home(fleet), "control"), command, **words)


def status(fleet: Fleet) -> dict[str, Any]:
    """Of the node, as soon as it answers."""
    wait_until(lambda: fleet.status(NODE) is not None, LONG, "the node answers")
    return dict(fleet.status(NODE) or {})


def at_work(fleet: Fleet) -> bool:
    """Whether results of the node were admitted since it started."""
    return (fleet.status(NODE) or {}).get("admitted", 0) > 0


def configure(fleet: Fleet, **keys: str) -> None:
    """Change keys of node.toml, as TOML."""
    path = home(fleet) / "node.toml"
    lines = path.read_text().splitlines()
    for key, value in keys.items():
        [place] = [number for number, line in enumerate(lines) if line.startswith(f"{key} = ")]
        lines[place] = f"{key} = {value}"
    path.write_text("\n".join(lines) + "\n")


def follows(fleet: Fleet, versions: int = 3) -> None:
    """Wait until the node serves a version that is `versions` newer than now's."""
    wanted = fleet.host_version() + versions
    wait_until(lambda: fleet.serves(NODE, wanted), LONG, f"version {wanted} at the node")


def test_a_pause_stops_the_leases_but_not_the_weights_and_outlives_a_kill_until_the_resume(fleet: Fleet) -> None:
    assert tell(fleet, "pause")["paused_by"] == "owner"
    wait_until(lambda: status(fleet)["state"].startswith("paused"), LONG, "the lease goes back")
    before = status(fleet)
    follows(fleet)
    after = status(fleet)
    assert (after["leases"], after["samples"]) == (before["leases"], before["samples"])
    assert after["presence"]["working"] is False
    fleet.restart(NODE)
    follows(fleet)
    assert (status(fleet)["presence"]["paused_by"], status(fleet)["leases"]) == ("owner", 0)
    assert tell(fleet, "resume")["working"] is True
    wait_until(lambda: at_work(fleet), LONG, "results after the resume")


def test_a_node_works_in_its_hours_only(fleet: Fleet) -> None:
    configure(fleet, hours='["03:00-04:00"]')
    fleet.restart(NODE, shifted_to(12))
    follows(fleet)
    found = status(fleet)
    assert (found["presence"]["paused_by"], found["leases"]) == ("hours", 0)
    assert found["presence"]["until"].endswith("03:00")
    fleet.restart(NODE, shifted_to(3.1))
    wait_until(lambda: at_work(fleet), LONG, "results within the hours")


def shifted_to(hour: float) -> dict[str, str]:
    """The environment of a program whose wall clock is at this hour of the next day, UTC."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    offset = DAY_SECONDS + hour * 3600 - (datetime.now(UTC) - midnight).total_seconds()
    return {OFFSET: str(offset), "TZ": "UTC"}


def test_a_node_makes_way_for_other_programs(fleet: Fleet) -> None:
    """Host, trainer and the other node are others: together they use more than half a percent of this machine."""
    configure(fleet, pause_when_cpu_busy="0.5")
    fleet.restart(NODE)
    wait_until(lambda: status(fleet)["presence"]["paused_by"] == "busy-cpu", LONG, "a pause")
    assert "(pause_when_cpu_busy 0.5)" in status(fleet)["presence"]["detail"]
    follows(fleet, 1)


def test_a_lasting_pause_gives_the_memory_back_and_the_next_engine_is_built_from_disk(fleet: Fleet) -> None:
    configure(fleet, unload_after_minutes="0.0", paused_up_kib_per_second="64.0")
    fleet.restart(NODE)
    wait_until(lambda: at_work(fleet), LONG, "results")
    engine = status(fleet)["engine_pid"]
    tell(fleet, "pause")
    wait_until(lambda: status(fleet)["engine_pid"] == 0, LONG, "the engine ends")
    assert not psutil.pid_exists(engine)
    found = status(fleet)
    assert (found["presence"]["unloaded"], found["version"], found["engine_restarts"]) == (True, -1, 0)
    assert found["exchange"]["up_kib"] == 64.0
    admitted = found["admitted"]
    tell(fleet, "resume")
    wait_until(lambda: status(fleet)["admitted"] > admitted, LONG, "results of the next engine")
    assert status(fleet)["exchange"]["up_kib"] == 0.0
    follows(fleet, 1)


def test_caps_last_until_the_restart_and_say_so(fleet: Fleet) -> None:
    answer = tell(fleet, "caps", up_kib=500)
    assert (answer["up_kib"], answer["down_kib"]) == (500.0, 0.0)
    assert "until the restart" in answer["lasts"]
    fleet.restart(NODE)
    assert status(fleet)["exchange"]["up_kib"] == 0.0


@pytest.mark.parametrize("how", ["quit", "SIGTERM"])
def test_an_idle_node_leaves_at_once(how: str, fleet: Fleet) -> None:
    tell(fleet, "pause")
    wait_until(lambda: status(fleet)["state"].startswith("paused"), LONG, "the node is idle")
    program, began = fleet.running[NODE], boottime()
    if how == "quit":
        assert tell(fleet, "quit")["draining"] is True
    else:
        program.signal(signal.SIGTERM)
    assert program.process.wait(LONG) == 0
    assert boottime() - began < 5.0, "two children and a log are closed, nothing is waited for"


def test_the_children_of_a_node_are_polite(fleet: Fleet) -> None:
    configure(fleet, nice="7", io_priority='"idle"')
    fleet.restart(NODE)
    wait_until(lambda: status(fleet)["engine_pid"] > 0, LONG, "an engine")
    engine = psutil.Process(status(fleet)["engine_pid"])
    assert (engine.nice(), engine.ionice().ioclass) == (7, psutil.IOPRIO_CLASS_IDLE)
    [bulk] = descendants(fleet.running[NODE].process.pid, "aurora_p2p.net.bulk")
    assert (bulk.nice(), bulk.ionice().ioclass) == (2, psutil.IOPRIO_CLASS_IDLE)


def children(program: Program) -> list[psutil.Process]:
    return psutil.Process(program.process.pid).children(recursive=True)


def test_a_model_that_the_owner_has_no_memory_for_is_declined_with_figures(fleet: Fleet) -> None:
    configure(fleet, max_ram_gib="0.01")
    fleet.restart(NODE)
    wait_until(lambda: "max_ram_gib" in status(fleet)["problem"], LONG, "a reason")
    assert "more than 0.01 (max_ram_gib in node.toml)" in status(fleet)["problem"]
    assert status(fleet)["version"] == -1
