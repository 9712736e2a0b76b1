"""What others do with the machine: the arithmetic, and a look at this one."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_node import measure
from aurora_node.measure import CpuTimes, Meter, disk_floor, free_ram, others_percent, rss_of, total_ram
from aurora_p2p.local.clock import boottime


def test_what_our_own_processes_use_is_not_others_use():
    before = CpuTimes(0.0, 100.0, {(1, 0.0): 10.0})
    after = CpuTimes(10.0, 120.0, {(1, 0.0): 15.0, (2, 5.0): 5.0})  # 20 s of CPU, 10 of them ours
    assert others_percent(before, after, 4) == 25.0


def test_a_pid_that_is_used_again_is_another_process():
    before = CpuTimes(0.0, 100.0, {(7, 0.0): 50.0})
    after = CpuTimes(10.0, 110.0, {(7, 5.0): 4.0})
    assert others_percent(before, after, 1) == 60.0


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e6), st.integers(1, 512))
def test_a_share_is_between_none_and_all(busy, own, seconds, cpus):
    found = others_percent(CpuTimes(0.0, 5.0, {}), CpuTimes(seconds, busy, {(1, 0.0): own}), cpus)
    assert 0.0 <= found <= 100.0


def test_the_first_look_knows_no_load_and_the_second_does(tmp_path):
    meter = Meter(tmp_path)
    first, second = meter.measure(), meter.measure()
    assert first.cpu_others is None
    assert second.cpu_others is not None
    assert 0 < second.free_ram <= total_ram()
    assert second.free_disk > 0
    assert second.gpu_others is None


def test_a_folder_that_is_gone_has_no_figure(tmp_path):
    assert Meter(tmp_path / "gone").measure().free_disk is None
    assert disk_floor(tmp_path / "gone", 7) == 7


def test_a_small_disk_is_left_a_tenth(tmp_path):
    total = os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert disk_floor(tmp_path, 1) == 1
    assert disk_floor(tmp_path, 2**62) == total // 10


def test_a_process_has_a_size_until_it_is_gone():
    words = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert rss_of(child.pid) > 2**20
        child.communicate(b"\n")
        assert rss_of(child.pid) == 0


def test_in_a_container_its_own_limit_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "CGROUP", tmp_path)
    for name, text in [("max", "1000000"), ("current", "900000"), ("stat", "anon 5\ninactive_file 50000\n")]:
        (tmp_path / f"memory.{name}").write_text(text)
    assert (total_ram(), free_ram()) == (1_000_000, 150_000)
    (tmp_path / "memory.max").write_text("max\n")
    assert total_ram() > 1_000_000
    assert free_ram() > 1_000_000


@pytest.mark.slow
def test_a_program_of_somebody_else_is_seen_and_a_child_of_ours_is_not(tmp_path):
    """One busy process, first as our child, then orphaned: the same load is ours, then another's."""
    spin = "end = __import__('time').monotonic() + 60\nwhile __import__('time').monotonic() < end: pass"
    child = subprocess.Popen([sys.executable, "-c", spin])
    try:
        others, own, all_ = use_of_cpu(tmp_path, child.pid)
    finally:
        child.kill()
        child.wait()
    assert others <= all_ - own - USED_SECONDS + ROUNDING_SECONDS
    shell = ["sh", "-c", '"$0" -c "$1" >/dev/null 2>&1 & echo $!', sys.executable, spin]
    orphan = int(subprocess.run(shell, capture_output=True, text=True, check=True).stdout)
    try:
        others, own, all_ = use_of_cpu(tmp_path, orphan)
    finally:
        os.kill(orphan, signal.SIGKILL)
    assert USED_SECONDS - ROUNDING_SECONDS <= others <= all_ - own + ROUNDING_SECONDS


USED_SECONDS = 0.5
ROUNDING_SECONDS = 0.15
"""The kernel counts in ticks of 10 ms, for each CPU and process."""


def use_of_cpu(folder, pid):
    """While a process uses USED_SECONDS: seconds of CPU that others used, that this process used, that there were."""
    meter, process = Meter(folder), psutil.Process(pid)
    meter.measure()
    began, mine, its = boottime(), time.process_time(), process.cpu_times().user
    while process.cpu_times().user < its + USED_SECONDS:
        os.sched_yield()
    percent = meter.measure().cpu_others
    all_ = (boottime() - began) * psutil.cpu_count()
    return percent / 100 * all_, time.process_time() - mine, all_
