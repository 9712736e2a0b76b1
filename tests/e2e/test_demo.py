"""The demo, stopped in the middle: it takes every process that it started with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from aurora_p2p.host.programs import descendants, wait_until
from tests.e2e.world import LONG

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [(signal.SIGINT, 130, []), (signal.SIGTERM, 143, []), (signal.SIGTERM, 143, ["--chaos"])],
)
def test_a_demo_that_is_stopped_leaves_no_process_and_no_folder_behind(
    number: signal.Signals, status: int, words: list[str], tmp_path: Path
) -> None:
    program = str(Path(sys.executable).with_name("aurora-host"))
    command = [program, "demo", *words, "--nodes", "1", "--home", str(tmp_path)]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert demo.stdout is not None
        folder = Path(demo.stdout.readline().split("logs in ")[1].split()[0])
        started: set[psutil.Process] = set()

        def node_runs() -> bool:
            started.update(psutil.Process(demo.pid).children(recursive=True))
            return bool(descendants(demo.pid, "aurora-node"))

        wait_until(node_runs, LONG, "the demo's node")
        demo.send_signal(number)
        _, err = demo.communicate(timeout=LONG)
    finally:
        demo.kill()
        demo.communicate()
    assert (demo.returncode, "Traceback" in err) == (status, False), err
    assert psutil.wait_procs(started, timeout=10)[1] == []
    assert not folder.exists()
