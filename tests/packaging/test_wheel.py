"""What is installed, and what a program loads before it knows what to do."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
PACKAGES = {"aurora_p2p", "aurora_node", "aurora_bootstrap"}
HEAVY = ("torch", "vllm", "aiortc", "libp2p", "transformers", "numba")
PROGRAMS = ("aurora_node.cli", "aurora_p2p.host.cli", "aurora_bootstrap.cli")


def build_wheel(folder: Path) -> Path:
    """Build in this process: no network, no isolated environment."""
    [artifact] = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(artifact)


def test_a_wheel_holds_exactly_the_three_packages_and_the_scripts(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(tmp_path)) as wheel:
        names = wheel.namelist()
        [scripts] = [wheel.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    [metadata] = {name.split("/")[0] for name in names if ".dist-info/" in name}
    assert {name.split("/")[0] for name in names} == PACKAGES | {metadata}
    installed = {name for name in names if name.endswith(".py")}
    written = {
        str(path.relative_to(ROOT / root))
        for root in (".", "node", "bootstrap")
        for package in PACKAGES
        for path in (ROOT / root / package).rglob("*.py")
    }
    assert installed == written
    for program in ("aurora-node", "aurora-host", "aurora-bootstrap"):
        assert f"{program} = " in scripts


@pytest.mark.parametrize("module", PROGRAMS)
def test_a_program_that_only_parses_its_command_line_has_loaded_nothing_heavy(module: str) -> None:
    code = f"import sys, {module} as cli; cli.parser(); print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'node'}:{ROOT / 'bootstrap'}"},
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
