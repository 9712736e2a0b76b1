"""Network namespaces belong to root, and so do the tests in here: CI runs as root. For anybody else they are not
collected, and the end of the report says so. As root nothing is left out: a missing tool fails the tests."""

from __future__ import annotations

import os

import pytest

IS_ROOT = os.geteuid() == 0
collect_ignore_glob = [] if IS_ROOT else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not IS_ROOT:
        terminalreporter.write_line("tests/lab was not collected: network namespaces need root (sudo make test)")
