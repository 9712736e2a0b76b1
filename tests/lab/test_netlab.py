"""The laboratory of network namespaces, and artifacts that cross it between real data planes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aurora_p2p.errors import UsageError
from aurora_p2p.testing.netlab import NAMES, Access, LabError, open_lab, remove_stale
from aurora_p2p.testing.netrate import calibrate
from benchmarks.swarm_net_fleet import Fleet
from benchmarks.swarm_net_kills import victim

ROOT = Path(__file__).parents[2]
LINE = Access(100, 100)
FAR = Access(100, 100, region=1)
SIZE = 8_000_000
PATIENCE_SECONDS = 100.0
LEAVE_WITHOUT_A_WORD = """
import os
from aurora_p2p.testing.netlab import Access, open_lab
with open_lab([Access(10, 10)]):
    os._exit(3)
"""


def namespaces(pid: int) -> set[str]:
    return {path.name for path in NAMES.glob(f"aurora-{pid}-*")}


@pytest.mark.slow
def test_namespaces_are_gone_when_the_laboratory_is_left_whatever_happens_in_it() -> None:
    with open_lab([LINE, LINE]) as lab:
        assert {lab.hub, *(node.namespace for node in lab.nodes)} <= namespaces(os.getpid())
    with pytest.raises(ZeroDivisionError), open_lab([LINE]):
        raise ZeroDivisionError
    with pytest.raises(LabError), open_lab([LINE], congestion="telepathy"):
        raise AssertionError("the kernel must refuse")
    assert namespaces(os.getpid()) == set()


@pytest.mark.slow
def test_what_a_dead_process_left_behind_is_removed_and_what_a_living_one_has_is_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", LEAVE_WITHOUT_A_WORD], cwd=ROOT)
    assert child.wait(30) == 3
    with open_lab([LINE]) as lab:
        remove_stale()
        assert namespaces(child.pid) == set()
        assert lab.hub in namespaces(os.getpid())


@pytest.mark.slow
def test_a_line_carries_no_more_than_its_rate_and_every_byte_is_counted() -> None:
    with open_lab([Access(40, 40), Access(400, 20), Access(400, 400, region=1)], cut=10) as lab:
        for target, mbit in ((1, 20), (2, 10)):
            before = lab.counts()
            rate = calibrate(lab, 0, target, mbit, time.monotonic)
            after = lab.counts()
            assert rate.payload_ratio < 1.0
            assert rate.wire_ratio > 1.0
            arrived = after[target].down - before[target].down
            assert 2 * mbit * 1e6 / 8 < arrived < 1.1 * (after[0].up - before[0].up)


@pytest.mark.slow
def test_nothing_leaves_the_laboratory() -> None:
    with open_lab([LINE]) as lab, lab.nodes[0].socket() as sock, pytest.raises(OSError, match="unreachable"):
        sock.connect(("192.0.2.1", 9))


def test_impossible_networks_are_refused_with_a_reason() -> None:
    for lines, cut, why in (
        ([], 0.0, "0 nodes"),
        ([Access(0, 1)], 0.0, "rates above 0"),
        ([Access(1, 1, region=2)], 5.0, "region 0 or 1"),
        ([LINE, FAR], 0.0, "the cut"),
    ):
        with pytest.raises(UsageError, match=why), open_lab(lines, cut=cut):
            raise AssertionError("it must not open")
    assert namespaces(os.getpid()) == set()


@pytest.mark.slow
def test_an_artifact_reaches_three_nodes_in_two_regions_and_crosses_less_often_than_there_are_nodes(
    tmp_path: Path,
) -> None:
    with open_lab([LINE, LINE, FAR, FAR], cut=50) as lab, Fleet.open(lab, tmp_path, "ours") as fleet:
        trial = fleet.transfer(SIZE, patience=PATIENCE_SECONDS)
        assert trial.complete
        assert trial.origin_copies < len(lab.nodes) - 1
        assert trial.statuses[0]["passage"]["segments"] == -(-SIZE // (1 << 18))


@pytest.mark.slow
def test_a_gateway_that_is_killed_or_frozen_does_not_stop_the_others(tmp_path: Path) -> None:
    with open_lab([Access(20, 20), LINE, FAR, FAR], cut=20) as lab, Fleet.open(lab, tmp_path, "ours") as fleet:
        far = {2, 3}

        def strike(fleet: Fleet, began: float) -> set[int]:
            while time.monotonic() < began + PATIENCE_SECONDS:
                seen = fleet.statuses(0, far)
                if sum(one["pushes"].get("gateway", 0) for one in seen.values()) >= 2:
                    break
            doomed = victim("gateway", seen, {node: {"pushes": {}} for node in far})
            fleet.signal(doomed, signal.SIGSTOP)
            return {doomed}

        trial = fleet.transfer(SIZE, patience=PATIENCE_SECONDS, meanwhile=strike)
        assert len(trial.expected) == 2
        assert trial.complete


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["direct", "relay", "chain"])
def test_a_static_plan_delivers_the_same_bytes_over_the_same_data_planes(tmp_path: Path, policy: str) -> None:
    with open_lab([LINE, LINE, LINE, FAR], cut=100) as lab, Fleet.open(lab, tmp_path, policy) as fleet:
        trial = fleet.transfer(SIZE, patience=PATIENCE_SECONDS)
        assert trial.complete
        copies = {"direct": 3.0, "relay": 2.0, "chain": 1.0}[policy]
        assert trial.origin_copies == copies
