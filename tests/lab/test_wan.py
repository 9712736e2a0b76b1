"""The emulated long path: real packets between two namespaces. Needs root: what it cannot build, it fails to build."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.testing.netlab import LabNode
from aurora_p2p.testing.wan import Wan, WanShape, open_wan
from aurora_p2p.testing.wan_pipe import Pipe
from benchmarks.wan_sockets import transfer

ROOT = Path(__file__).parents[2]
SERVE = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 23)  # SO_RCVBUFFORCE: a busy machine drops nothing here
    sock.bind((sys.argv[1], 4000))
    print("listening", flush=True)
    while True:
        datagram, remote = sock.recvfrom(2048)
        sock.sendto(datagram, remote)
"""
ASK = """
import json, socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 23)
    sock.settimeout(5)
    sent = []
    for number in range(int(sys.argv[2])):
        sent.append(time.monotonic())
        sock.sendto(number.to_bytes(4, "big"), (sys.argv[1], 4000))
    came = []
    try:
        while len(came) < len(sent):
            number = int.from_bytes(sock.recv(2048), "big")
            came.append((number, time.monotonic() - sent[number]))
    except TimeoutError:
        pass
print(json.dumps(came))
"""


def python(node: LabNode, *words: str) -> list[str]:
    return node.command([sys.executable, *words])


def echoes(wan: Wan, count: int) -> list[tuple[int, float]]:
    """Send datagrams to an echo at the other end: the number and round trip of each that came back, in that order."""
    here, there = wan.nodes
    with subprocess.Popen(python(there, "-c", SERVE, there.address), stdout=subprocess.PIPE) as echo:
        try:
            assert echo.stdout is not None
            assert echo.stdout.readline() == b"listening\n"
            words = python(here, "-c", ASK, there.address, str(count))
            said = subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=60).stdout
        finally:
            echo.kill()
    return [(number, seconds) for number, seconds in json.loads(said)]


def printed(words: Sequence[str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def namespaces() -> set[str]:
    return {line.split()[0] for line in printed(["ip", "netns", "list"]).splitlines()}


@given(
    sizes=st.lists(st.integers(1, 1500), max_size=60),
    rate=st.floats(1e3, 1e8),
    delay=st.floats(0, 1),
    queue=st.integers(0, 20_000),
    seed=st.integers(0, 2**32),
)
def test_a_pipe_keeps_the_order_the_delay_the_rate_and_its_bound(
    sizes: list[int], rate: float, delay: float, queue: int, seed: int
) -> None:
    pipe, chance, now = Pipe(rate, delay, queue), random.Random(seed), 0.0
    taken: list[tuple[int, float]] = []
    for number, size in enumerate(sizes):
        before = pipe.dropped
        pipe.take(bytes([number]) * size, now=now)
        taken += [(number, now)] if pipe.dropped == before else []
        now += chance.random() * size / rate
    assert pipe.passed + pipe.dropped == len(sizes)
    arrived: list[tuple[int, float]] = []
    carried = 0
    while (due := pipe.next_deadline()) < float("inf"):
        assert pipe.due(now=math.nextafter(due, 0)) == []  # nothing is early
        for packet in pipe.due(now=due):
            arrived.append((packet[0], due))
            carried += len(packet)
    assert [number for number, _ in arrived] == [number for number, _ in taken]
    assert carried == pipe.passed_bytes
    for (number, entered), (_, left) in zip(taken, arrived, strict=True):
        least = entered + sizes[number] / rate + delay
        assert least * (1 - 1e-9) <= left <= least + (queue / rate) * (1 + 1e-9) + 1e-9


@pytest.mark.slow
def test_no_packet_is_early_and_none_overtakes_another() -> None:
    with open_wan(WanShape(100, 0.05)) as wan:
        came = echoes(wan, 200)
        counts = wan.path_counts()
    assert [number for number, _ in came] == list(range(200))
    assert min(seconds for _, seconds in came) >= 0.05
    assert counts.packets == (200, 200)
    assert counts.queue_dropped == counts.lost == (0, 0)


@pytest.mark.slow
def test_packets_are_lost_as_often_as_asked_and_each_loss_is_counted() -> None:
    with open_wan(WanShape(100, 0.01, loss_ratio=0.2)) as wan:
        came = echoes(wan, 1000)
        counts = wan.path_counts()
    there, back = counts.lost
    assert counts.packets == (1000, 1000 - there)
    assert len(came) == 1000 - there - back
    assert 100 < there < 300  # 0.2 of them, give or take seven standard deviations


@pytest.mark.slow
def test_a_full_queue_drops_what_does_not_fit() -> None:
    with open_wan(WanShape(0.1, 0.01, queue_bytes=2000)) as wan:
        came = echoes(wan, 500)
        counts = wan.path_counts()
    assert counts.queue_dropped[0] > 0
    assert counts.packets[0] + counts.queue_dropped[0] == 500
    assert len(came) == counts.packets[1]


@pytest.mark.slow
@pytest.mark.parametrize("streams", [1, 8])
def test_bytes_travel_exactly_over_a_long_path_that_loses(streams: int) -> None:
    with open_wan(WanShape(100, 0.03, loss_ratio=0.005)) as wan:
        passage = transfer(wan, streams=streams, size=2 << 20)
        counts = wan.path_counts()
    assert passage.sent_digest == passage.received_digest
    assert sum(counts.lost) > 0
    assert counts.bytes[0] > 2 << 20


@pytest.mark.slow
def test_each_connection_uses_the_congestion_control_of_the_route() -> None:
    for name in ("cubic", "bbr"):
        with open_wan(WanShape(100, 0.03, congestion=name)) as wan:  # type: ignore[arg-type]
            for node in wan.nodes:
                assert f"congctl {name}" in printed(node.command(["ip", "route"]))


@pytest.mark.slow
def test_nothing_is_left_behind_not_even_by_what_failed_inside() -> None:
    with pytest.raises(ZeroDivisionError), open_wan(WanShape(100, 0.03)) as wan:
        pid = wan.shim_pid
        names = {node.namespace for node in wan.nodes}
        assert names <= namespaces()
        raise ZeroDivisionError
    assert not names & namespaces()
    assert not Path(f"/proc/{pid}").exists()
    assert not [node.port for node in wan.nodes if node.port in printed(["ip", "link"])]


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed_by_the_next() -> None:
    program = """
import os, signal
from aurora_p2p.testing.wan import WanShape, open_wan
with open_wan(WanShape(100, 0.03)) as wan:
    print(*(node.namespace for node in wan.nodes), wan.shim_pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    *left, _ = done.stdout.split()
    assert set(left) <= namespaces()
    with open_wan(WanShape(100, 0.03)):
        assert not set(left) & namespaces()


@pytest.mark.slow
def test_the_benchmark_prints_every_promised_figure_and_its_shim_stays_under_half_a_core() -> None:
    words = [sys.executable, "-m", "benchmarks.wan", "--json", "--trials", "1", "--megabytes", "4"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for way in ("streams", "plain"):
        assert list(report[way]) == ["1", "4", "8"]
        assert all(one["seconds"] >= report["path"]["rtt_seconds"] / 2 for one in report[way].values())
    assert 0 < report["shim_cpu_ratio"] < 0.5
