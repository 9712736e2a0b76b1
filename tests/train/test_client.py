"""The trainer's connection: what it asks, how it waits, and what it says when the host is gone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from aurora_p2p.errors import RefusedError, UnreachableError, WireError
from aurora_p2p.train import client as client_module
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.train.tasks import SORT_DIGITS, sampling_of
from aurora_p2p.types import Record, Step
from aurora_p2p.wire.control import Noted
from aurora_p2p.wire.trainer import Failed, Rollout, Rollouts, TakeRollouts, Waiting

PROMPT = tuple(b"4172>")


def one_sample(weights, version, request) -> list[Rollout]:
    return [Rollout(0, 0, 0, "x" * 52, (258,), (-0.5,), "stop")]


def test_rollouts_are_polled_until_they_are_complete(open_swarm) -> None:
    swarm = open_swarm(one_sample)
    swarm.waits = 2
    seen: list[Waiting] = []
    with SwarmClient.open(swarm.path) as client:
        assert client.attach().version == -1
        client.submit(Step(0), [PROMPT], 1, sampling_of(SORT_DIGITS))
        rollouts = client.rollouts(Step(0), seen.append)
        assert client.status() == '{"nodes": 1}'
    assert [sample.tokens for sample in rollouts.samples] == [(258,)]
    assert [waiting.why for waiting in seen] == ["no node has joined"] * 2


def test_after_its_patience_a_trainer_takes_the_complete_groups(open_swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm, asked = open_swarm(one_sample), list[TakeRollouts]()

    def answer(request: TakeRollouts, _payload: bytes) -> Record:
        asked.append(request)
        if request.short == "drop":
            return Rollouts(Step(0), (), 1.0, 0, 1)
        return Waiting(Step(0), 1, 2, "1 leased")

    _answering(swarm, monkeypatch, answer)
    with SwarmClient.open(swarm.path) as client:
        assert client.rollouts(Step(0), patience_seconds=0.05).short_groups == 1
    assert [take.short for take in asked[-2:]] == ["wait", "drop"]
    assert asked[0].wait_seconds <= 0.05


def test_a_home_folder_names_its_socket(open_swarm, tmp_path: Path) -> None:
    swarm = open_swarm(one_sample)
    (tmp_path / "trainer.sock").symlink_to(swarm.path)
    with SwarmClient.open(tmp_path) as client:
        assert client.attach().segment_bytes == 1024


def test_a_host_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match=r"trainer\.sock") as caught:
        SwarmClient.open(tmp_path)
    assert "aurora-host run" in caught.value.hint


def _answering(swarm, monkeypatch: pytest.MonkeyPatch, answer: Callable[..., Record | None]) -> None:
    monkeypatch.setattr(swarm, "_answer", answer)


def test_a_refusal_keeps_the_hosts_sentence_and_hint(open_swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = open_swarm(one_sample)
    _answering(swarm, monkeypatch, lambda *_: Failed("step 3 is consumed", "attach again"))
    with SwarmClient.open(swarm.path) as client, pytest.raises(RefusedError, match="step 3 is consumed") as caught:
        client.rollouts(Step(3))
    assert caught.value.hint == "attach again"


def test_an_answer_of_the_wrong_kind_is_a_wire_error(open_swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = open_swarm(one_sample)
    _answering(swarm, monkeypatch, lambda *_: Noted())
    with SwarmClient.open(swarm.path) as client, pytest.raises(WireError, match="Noted where Waiting belongs"):
        client.rollouts(Step(0))


def test_a_host_that_closes_the_connection_is_unreachable(open_swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang_up(*_: object) -> None:
        raise EOFError

    swarm = open_swarm(one_sample)
    _answering(swarm, monkeypatch, hang_up)
    with SwarmClient.open(swarm.path) as client, pytest.raises(UnreachableError, match="closed the connection"):
        client.attach()


def test_a_host_that_falls_silent_is_unreachable(open_swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "REPLY_SECONDS", 0.05)
    swarm = open_swarm(one_sample)
    _answering(swarm, monkeypatch, lambda *_: None)
    with SwarmClient.open(swarm.path) as client, pytest.raises(UnreachableError, match="does not answer"):
        client.attach()
