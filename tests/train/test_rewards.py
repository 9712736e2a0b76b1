"""The reward child under scorers that hang, die, raise, hoard memory or call out. Real processes."""

import os
import select
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aurora_p2p.errors import ChildError
from aurora_p2p.train.rewards import RewardChild, RewardLimits
from aurora_p2p.train.tasks import EOS, SORT_DIGITS

pytestmark = pytest.mark.slow

HANG, EXIT, RAISE, NOT_A_NUMBER, HOARD, DIAL, SPIN = range(7)
PROMPT = (1,)
LIMITS = RewardLimits(wall_seconds=1.0, cpu_seconds=1)


class Hostile:
    """Names the task of hostile_task.py without importing it here."""

    path = "hostile_task:HOSTILE"


class Careless:
    path = "hostile_task:CARELESS"


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[RewardChild]:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    with RewardChild(Hostile(), LIMITS) as running:  # type: ignore[arg-type]
        yield running


def test_a_batch_is_scored_in_order_by_one_child() -> None:
    with RewardChild(SORT_DIGITS) as child:
        right, wrong = (tuple(b"4172>"), (*b"1247", EOS)), (tuple(b"4172>"), (*b"1248", EOS))
        assert child.score([right, wrong, right]) == [1.0, 0.0, 1.0]
        assert child.score([]) == []
        assert child.restarts == 0


@pytest.mark.parametrize("fault", [HANG, EXIT])
def test_an_item_that_hangs_or_ends_the_child_has_no_reward_and_the_others_have_theirs(
    child: RewardChild, fault: int
) -> None:
    assert child.score([(PROMPT, (7,)), (PROMPT, (fault,)), (PROMPT, (8,))]) == [7.0, None, 8.0]
    assert child.restarts == 1
    assert child.score([(PROMPT, (9,))]) == [9.0]


def test_faults_at_both_ends_of_a_batch_cost_only_themselves(child: RewardChild) -> None:
    assert child.score([(PROMPT, (EXIT,)), (PROMPT, (7,)), (PROMPT, (EXIT,))]) == [None, 7.0, None]


def test_a_scorer_that_raises_hoards_or_returns_nan_gives_no_reward_and_lives_on(child: RewardChild) -> None:
    batch = [(PROMPT, (fault,)) for fault in (RAISE, NOT_A_NUMBER, HOARD)]
    assert child.score([*batch, (PROMPT, (7,))]) == [None, None, None, 7.0]
    assert child.restarts == 0


def test_a_scorer_that_spins_is_ended_and_its_cpu_time_is_not_charged_to_others(child: RewardChild) -> None:
    assert child.score([(PROMPT, (SPIN,)), (PROMPT, (7,)), (PROMPT, (8,))]) == [None, 7.0, 8.0]


def test_a_completion_over_the_length_limit_is_not_shown_to_the_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    with RewardChild(Hostile(), RewardLimits(max_tokens=2)) as child:  # type: ignore[arg-type]
        assert child.score([(PROMPT, (EXIT, 0, 0)), (PROMPT, (7, 0))]) == [None, 7.0]
        assert child.restarts == 0


def test_the_child_says_whether_it_has_a_network_and_that_is_true(child: RewardChild) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        reward = child.score([(PROMPT, (DIAL, server.getsockname()[1]))])
    assert reward == ([None] if child.network == "none" else [1.0])


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"(" * 20_000 + b")" * 20_000, id="deep nesting"),
        pytest.param(b"9**9**9**9", id="huge power"),
        pytest.param(b"__import__('os')._exit(0)", id="import"),
        pytest.param(b"__import__('sys').exit('bye')", id="exit"),
        pytest.param(b"'7' * 10**12", id="memory"),
        pytest.param(b"7" * 10_000_000, id="10 MB of digits"),
        pytest.param(b"\x1b]0;owned\x07\xff", id="no text"),
    ],
)
def test_a_hostile_answer_costs_its_own_reward_even_of_a_task_that_evaluates_it(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    limits = RewardLimits(wall_seconds=5.0, cpu_seconds=2, max_tokens=1 << 24)
    with RewardChild(Careless(), limits) as child:  # type: ignore[arg-type]
        assert child.score([(PROMPT, tuple(text)) for text in (b"7", answer, b"8")]) == [7.0, None, 8.0]


def test_ten_megabytes_of_digits_are_not_even_sent_under_the_usual_limits(child: RewardChild) -> None:
    assert child.score([(PROMPT, (7,) * 10_000_000), (PROMPT, (8,))]) == [None, 8.0]
    assert child.restarts == 0


def test_many_long_answers_are_scored_within_the_memory_of_one(child: RewardChild) -> None:
    length = 32_768
    assert child.score([(PROMPT, (300,) * length)] * 800) == [300.0] * 800
    assert child.restarts == 0


def test_a_process_that_a_scorer_left_behind_ends_with_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    with RewardChild(Careless(), LIMITS) as child:  # type: ignore[arg-type]
        (pid,) = child.score([(PROMPT, tuple(b"__import__('subprocess').Popen(['sleep', '600']).pid"))])
        assert pid is not None
        left = os.pidfd_open(int(pid))
    try:
        assert select.select([left], [], [], 30.0)[0]  # readable once it has ended
    finally:
        os.close(left)


def test_a_task_that_cannot_be_imported_is_one_clear_error() -> None:
    class Missing:
        path = "no_such_module:TASK"

    with pytest.raises(ChildError, match="no_such_module"):
        RewardChild(Missing())  # type: ignore[arg-type]


def test_the_child_inherits_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AURORA_SECRET", "x")
    with RewardChild(SORT_DIGITS) as child:
        environment = Path(f"/proc/{child._process.pid}/environ").read_bytes()
    assert b"AURORA_SECRET" not in environment
    assert os.fsencode(sys.path[-1]) in environment
