"""Network namespaces belong to root, and so do the tests in here: CI runs as root. For anybody else they are not
collected, and the end of the report says so. As root nothing is left out: a missing tool fails the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
IS_ROOT = os.geteuid() == 0
collect_ignore_glob = [] if IS_ROOT else ["test_*.py"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lines have rates here and paths have delays: whatever is slow in here runs alone."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("slow"):
            item.add_marker("alone")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not IS_ROOT:
        terminalreporter.write_line("tests/lab was not collected: network namespaces need root (sudo make test)")
