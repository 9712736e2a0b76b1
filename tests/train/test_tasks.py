"""The task that the demo learns."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.train.tasks import EOS, HELD_OUT, SORT_DIGITS, VOCABULARY, sampling_of

PROMPT = tuple(b"4172>")


def test_only_the_sorted_digits_and_a_clean_stop_are_rewarded() -> None:
    assert SORT_DIGITS.score(PROMPT, (*b"1247", EOS)) == 1.0
    assert SORT_DIGITS.score(PROMPT, (*b"1247!", EOS)) == 0.0
    assert SORT_DIGITS.score(PROMPT, tuple(b"1247")) == 0.0
    assert SORT_DIGITS.score(PROMPT, (*b"4172", EOS)) == 0.0
    assert SORT_DIGITS.score(PROMPT, ()) == 0.0


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=6))
def test_any_tokens_of_the_vocabulary_have_a_score(tokens: list[int]) -> None:
    assert SORT_DIGITS.score(PROMPT, tuple(tokens)) in (0.0, 1.0)


def test_held_out_prompts_are_distinct_and_never_drawn_for_training_or_demonstrations() -> None:
    held_out = set(SORT_DIGITS.held_out(HELD_OUT))
    assert len(held_out) == HELD_OUT
    drawn = set(SORT_DIGITS.prompts(20_000, random.Random(1)))
    shown, _ = SORT_DIGITS.demonstrations(5_000, 0.65, random.Random(2))
    assert not held_out & drawn
    assert not held_out & set(shown)
    assert SORT_DIGITS.held_out(8) == SORT_DIGITS.held_out(HELD_OUT)[:8]


def test_the_same_seed_draws_the_same_prompts() -> None:
    assert SORT_DIGITS.prompts(32, random.Random("7/3")) == SORT_DIGITS.prompts(32, random.Random("7/3"))
    assert SORT_DIGITS.prompts(32, random.Random("7/3")) != SORT_DIGITS.prompts(32, random.Random("7/4"))


def test_sloppy_demonstrations_hold_the_answer_and_one_junk_character() -> None:
    prompts, completions = SORT_DIGITS.demonstrations(2_000, 0.65, random.Random(3))
    kinds: Counter[bool] = Counter()
    for prompt, tokens in zip(prompts, completions, strict=True):
        clean = SORT_DIGITS.score(prompt, tokens) == 1.0
        kinds[clean] += 1
        assert len(tokens) <= SORT_DIGITS.max_tokens
        assert tokens[:4] == SORT_DIGITS.answer(prompt)
        assert tokens[-1] == EOS
    assert 0.6 < kinds[False] / 2_000 < 0.7


def test_the_sampling_asked_of_nodes_ends_where_the_task_ends() -> None:
    sampling = sampling_of(SORT_DIGITS)
    assert (sampling.temperature, sampling.max_tokens, sampling.stop_tokens) == (1.0, 6, (EOS,))
