"""What a person and a script see of a host: status, the command line without a host, and what a command loads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from aurora_p2p.host.cli import main
from aurora_p2p.host.config import HostConfig
from aurora_p2p.host.keys import init_host
from aurora_p2p.host.status import render_status
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.control import serve_control, socket_path
from aurora_p2p.wire.control import Progress
from tests.host.world import KEYS, NODES, SEGMENT, SWARM, begin, join_of, open_host, record_of
from tests.lease.world import prompts_of

SCRIPTS = Path(sys.executable).parent


def status_of(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


@pytest.fixture
def status(tmp_path):
    """The snapshot of a host that has published, with one member and a step half open."""

    async def make():
        async with open_host(tmp_path) as host:
            host.members.join(NODES[0].peer, join_of(NODES[0]), now=0.0)
            await host.publish(0)
            await host.pool_door.handle(prompts_of(0, 3, 2))
            return host.status(now=1.0)

    return trio.run(make)


def test_the_status_is_plain_json_and_says_what_is_going_on(status):
    status = json.loads(json.dumps(status))
    assert (status["version"], status["seq"], status["publications"], status["publishing"]) == (0, 1, 1, False)
    assert status["members"] == [NODES[0].peer]
    [step] = status["work"]["steps"]
    assert (step["step"], step["total"], step["open"], step["admitted"]) == (0, 6, 6, 0)


def test_the_pipeline_counts_who_has_staged_and_serves_the_newest_version(tmp_path):
    a, b, c = (node.peer for node in NODES[:3])

    async def make():
        async with open_host(tmp_path) as host:
            for node in NODES[:3]:
                host.members.join(node.peer, join_of(node), now=5.0)
            newest = await host.publish(0, bytes(2 * SEGMENT + 1))
            host.driver.held[newest.artifact] = {a: 1, b: 3, KEYS.node.peer: 3}
            host.answers.progress.report(b, Progress(-1, 0, 0, 0, -1, "staged"), now=6.0)
            host.answers.progress.report(c, Progress(-1, 0, 0, 0, 0, "generating"), now=7.0)
            before = host.status(now=9.0)
            await host.desk.begin(begin(1, newest), SEGMENT)
            await host.desk.add(bytes(SEGMENT + 7))
            return before, host.status(now=boottime() + 3.0)

    before, after = trio.run(make)
    pipeline = before["pipeline"]
    assert (pipeline["version"], pipeline["segments"], pipeline["bytes"]) == (0, 3, 2 * SEGMENT + 1)
    assert (pipeline["nodes"], pipeline["complete"], pipeline["staged"], pipeline["committed"]) == (3, 2, 2, 1)
    assert pipeline["spread_percent"] == (33 + 100 + 100) // 3
    assert pipeline["extract"] is None
    assert pipeline["extract_seconds"] >= 0
    nodes = {node["peer"]: node for node in before["nodes"]}
    assert [nodes[peer]["has_percent"] for peer in (a, b, c)] == [33, 100, None]
    assert [nodes[peer]["version"] for peer in (a, b, c)] == [-1, -1, 0]
    assert (nodes[a]["seen_seconds"], nodes[c]["progress"]["age_seconds"]) == (4.0, 2.0)
    assert (nodes[a]["address"], nodes[a]["region"], nodes[a]["progress"]) == ("127.0.0.1:4102", 0, None)
    extract = after["pipeline"]["extract"]
    assert (extract["version"], extract["bytes"], extract["bound"]) == (1, SEGMENT + 7, 10_000)
    assert extract["seconds"] >= 3.0
    assert after["publishing"]


def test_a_member_that_leaves_takes_its_row_and_its_report_along(tmp_path):
    async def make():
        async with open_host(tmp_path) as host:
            host.members.add_self(KEYS.node, record_of(KEYS.node), now=0.0)
            host.members.join(NODES[0].peer, join_of(NODES[0]), now=0.0)
            host.answers.progress.report(NODES[0].peer, Progress(-1, 0, 0, 0, 0, ""), now=0.0)
            assert [node["peer"] for node in host.status(now=1.0)["nodes"]] == [NODES[0].peer]
            assert host.members.expire(now=1000.0) == [NODES[0].peer]
            host.answers.progress.retain(host.members.peers)
            return host.status(now=1000.0)["nodes"], host.answers.progress.of(NODES[0].peer)

    assert trio.run(make) == ([], None)


def test_a_person_gets_it_in_a_few_lines(status):
    text = render_status(status)
    assert f"swarm     {SWARM}  generation 1" in text
    assert "version   0  (seq 1, 1 published since start)" in text
    assert "step 0    0/6 admitted, 0 leased, 6 open" in text
    status["work"]["refused"] = {"lag": 3}
    status["work"]["nodes"] = [{"peer": NODES[0].peer, "version": 0, "tokens_per_second": None, "admitted": 0}]
    text = render_status(status)
    assert "refused   lag: 3" in text
    assert "not measured" in text
    assert "version   none yet  (seq 1" in render_status(status | {"version": -1})


@pytest.mark.parametrize("folder", ["home", "deeper-than-a-socket-path-" * 5], ids=["short", "deep"])
@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["caps", "--up-kib", "5"]])
def test_without_a_host_status_and_caps_end_with_69_and_a_hint(words, folder, tmp_path, capsys):
    home = tmp_path / folder
    home.mkdir()
    code, out, err = status_of([*words, "--home", str(home)], capsys)
    assert (code, out) == (69, "")
    assert err == f"error: no daemon answers at {home}/control.sock\nhint:  is it running? is --home the same?\n"


def test_a_running_host_is_asked_over_its_socket(status, tmp_path, capsys):
    asked = []

    async def answer(request):
        return status

    async def caps(request):
        asked.append(request)
        return {"up_kib": 5.0, "down_kib": 0.0}

    async def run():
        async with trio.open_nursery() as nursery:
            path = socket_path(tmp_path, "control")
            nursery.start_soon(serve_control, path, {"status": answer, "caps": caps})
            await trio.testing.wait_all_tasks_blocked()
            for words in (["status"], ["status", "--json"], ["caps", "--up-kib", "5"]):
                with pytest.raises(SystemExit) as ended:
                    await trio.to_thread.run_sync(main, [*words, "--home", str(tmp_path)])
                assert ended.value.code == 0
            nursery.cancel_scope.cancel()

    trio.run(run)
    *text, as_json, up, down, lasting = capsys.readouterr().out.splitlines()
    assert text == render_status(status).splitlines()
    assert json.loads(as_json) == status
    assert (up, down) == ("up: 5 KiB/s", "down: no cap")
    assert "run.toml" in lasting
    assert asked == [{"command": "caps", "up_kib": 5.0}]


@pytest.mark.parametrize(
    "words", [[], ["nonsense"], ["init", "--segment-bytes", "many"], ["demo", "--baseline", "some"]]
)
def test_a_command_line_that_makes_no_sense_is_status_2(words, capsys):
    assert status_of(words, capsys)[0] == 2


HEAVY = ("trio", "torch", "libp2p", "vllm", "numba", "ssl")
LOADED = f"import sys; {{}}; print([name for name in {HEAVY} if name in sys.modules])"


@pytest.mark.parametrize(
    "imports",
    [
        "import aurora_p2p.host.cli, aurora_p2p.host.config",
        "import aurora_node.cli, aurora_node.status",
        "import aurora_bootstrap.cli",
    ],
)
def test_help_and_status_load_neither_the_network_nor_the_machine_learning(imports):
    root = Path(__file__).parents[2]
    env = {"PYTHONPATH": os.pathsep.join(str(root / part) for part in ("", "node", "bootstrap"))}
    code = LOADED.format(imports)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=env)
    assert done.stdout.strip() == "[]"


def test_the_text_of_a_hosts_status_loads_no_network_either():
    code = LOADED.format("import aurora_p2p.host.status")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("program", ["aurora-node", "aurora-host", "aurora-bootstrap"])
def test_help_takes_less_than_half_a_second_of_work(program):
    """Processor seconds, so that other work on the machine does not count."""
    before = os.times()
    subprocess.run([SCRIPTS / program, "--help"], capture_output=True, check=True, timeout=60)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 0.5


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("bulk_listen", '"nonsense"', "write it like 0.0.0.0:4102"),
        ("metrics_listen", '"0.0.0.0:9000"', "127.0.0.1:9000"),
        ("local", '["10.0.0.0/99"]', "write it like"),
    ],
)
def test_a_wrong_setting_ends_a_run_before_it_begins_and_is_named(key, value, remedy, tmp_path, capsys):
    init_host(tmp_path, HostConfig())
    lines = (tmp_path / "run.toml").read_text().splitlines()
    changed = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in lines]
    (tmp_path / "run.toml").write_text("\n".join(changed) + "\n")
    with pytest.raises(SystemExit) as ended:
        main(["run", "--plain", "--home", str(tmp_path)])
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"error: {key}: " in err
    assert remedy in err
    assert not (tmp_path / "ledger.sqlite").exists()
