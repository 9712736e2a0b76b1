"""A host that goes away, comes back, has no room: the trainer waits, says so once, and goes on."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from aurora_p2p.errors import RefusedError, UnreachableError
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.train.patience import MAX_PAUSE_SECONDS, insist


class Naps:
    """The sleep that is not slept; `wake` is called at the n-th."""

    def __init__(self, wake: Callable[[int], None] = lambda number: None) -> None:
        self.seconds: list[float] = []
        self._wake = wake

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._wake(len(self.seconds))


@pytest.fixture
def swarm(open_swarm):
    return open_swarm(lambda weights, version, request: [])


def failing(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    def work() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return work


def test_a_host_that_comes_back_is_connected_to_anew_and_the_request_is_made_again(swarm, caplog) -> None:
    with SwarmClient.open(swarm.path) as client, caplog.at_level(logging.WARNING):
        away = swarm.path.with_name("away.sock")
        asked = []

        def ask() -> int:
            asked.append(1)
            return client.attach().version

        client._channel._socket.shutdown(socket.SHUT_RDWR)
        swarm.path.rename(away)
        naps = Naps(lambda number: away.rename(swarm.path) if number == 3 else None)
        assert insist(client, ask, "attaching", sleep=naps) == -1
    assert len(asked) == 2
    assert naps.seconds == [0.25, 0.5, 1.0]
    assert [record.message for record in caplog.records][-1] == "attaching: it goes on"
    assert "attaching has to wait" in caplog.text


def test_a_host_that_names_a_time_is_given_it_and_more_from_one_attempt_to_the_next(swarm) -> None:
    full = [RefusedError("the disk is full", retry_seconds=2.0) for _ in range(8)]
    with SwarmClient.open(swarm.path) as client:
        naps = Naps()
        assert insist(client, failing(*full), "publishing", sleep=naps) == "done"
    assert naps.seconds[:4] == [2.0, 2.0, 2.0, 2.0]
    assert naps.seconds[-1] == MAX_PAUSE_SECONDS


def test_the_same_trouble_is_said_once(swarm, caplog) -> None:
    full = [RefusedError("the disk is full", hint="make room", retry_seconds=2.0) for _ in range(8)]
    with SwarmClient.open(swarm.path) as client, caplog.at_level(logging.WARNING):
        insist(client, failing(*full), "publishing version 3", sleep=Naps())
    assert [record.message for record in caplog.records] == [
        "publishing version 3 has to wait: the disk is full (make room)",
        "publishing version 3: it goes on",
    ]


def test_a_refusal_that_will_not_pass_is_raised_at_once(swarm) -> None:
    with SwarmClient.open(swarm.path) as client, pytest.raises(RefusedError, match="out of order"):
        insist(client, failing(RefusedError("version 3 is out of order")), "publishing", sleep=Naps())


def test_a_host_that_stays_away_is_given_up_in_the_end(tmp_path: Path, swarm) -> None:
    with SwarmClient.open(swarm.path) as client:
        client._path = tmp_path / "nobody.sock"
        with pytest.raises(UnreachableError, match="nothing answers"):
            insist(client, failing(UnreachableError("gone")), "attaching", seconds=0.5, sleep=Naps())
