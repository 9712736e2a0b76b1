"""py-libp2p forgets the sockets of connections that broke off half-way; Python closes them when they are collected and
warns. That is the library's (0.8.1), happens on the hostile side of these tests, and must not be blamed on the test
that happens to run then: so it is collected, and ignored, right after the test that caused it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
    for item in items:
        if item.path.name.startswith("test_control"):
            item.add_marker(mark)


@pytest.fixture(autouse=True)
def collect_forgotten_sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if request.path.name.startswith("test_control"):
        gc.collect()
