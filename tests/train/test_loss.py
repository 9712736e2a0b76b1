"""The loss against numbers computed by hand, and what must hold for any input."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from aurora_p2p.train.loss import LossOptions, clipped_loss, group_advantages, token_weights, zero_variance

NAN = math.nan


def test_advantages_are_rewards_against_their_own_group_in_units_of_its_deviation() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [3.0, 1.0, 2.0, 2.0]])
    centred = group_advantages(rewards, divide_by_std=False)
    assert centred.tolist() == [[0.5, -0.5, -0.5, 0.5], [1.0, -1.0, 0.0, 0.0]]
    scaled = group_advantages(rewards, divide_by_std=True)
    # unbiased deviations: sqrt(4 * 0.25 / 3) and sqrt(2 / 3)
    assert scaled[0, 0].item() == pytest.approx(0.5 / (math.sqrt(1 / 3) + 1e-4), rel=1e-6)
    assert scaled[1, 1].item() == pytest.approx(-1 / (math.sqrt(2 / 3) + 1e-4), rel=1e-6)


def test_a_sample_without_reward_leaves_its_group_and_gets_no_advantage() -> None:
    rewards = torch.tensor([[1.0, NAN, 0.0], [NAN, NAN, 1.0], [NAN, NAN, NAN]])
    advantages = group_advantages(rewards, divide_by_std=False)
    assert advantages.tolist() == [[0.5, 0.0, -0.5], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_groups_with_equal_rewards_have_zero_variance_also_when_rounding_would_say_otherwise() -> None:
    rewards = torch.tensor([[0.9, 0.9, 0.9], [0.1, 0.2, 0.1], [0.3, NAN, 0.3], [NAN, NAN, NAN]])
    assert zero_variance(rewards).tolist() == [True, False, True, True]
    assert group_advantages(rewards, divide_by_std=True)[0].tolist() == [0.0, 0.0, 0.0]


def test_token_weights_spread_one_over_tokens_or_over_sequences() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    assert token_weights(mask, "token").tolist() == [[0.25, 0.25, 0.25], [0.25, 0.0, 0.0], [0.0, 0.0, 0.0]]
    by_sequence = token_weights(mask, "sequence")
    assert by_sequence[0].tolist() == pytest.approx([1 / 6] * 3)
    assert by_sequence[1, 0].item() == pytest.approx(0.5)
    assert token_weights(mask[2:], "sequence").sum().item() == 0.0


def test_the_loss_of_two_tokens_is_the_sum_computed_by_hand() -> None:
    current = torch.tensor([[math.log(0.6), math.log(0.3)]])
    proximal = torch.tensor([[math.log(0.4), math.log(0.3)]])
    behaviour = torch.tensor([[math.log(0.5), math.log(0.1)]])
    weights = torch.tensor([[0.5, 0.5]])
    terms = clipped_loss(current, proximal, behaviour, torch.tensor([2.0]), weights, LossOptions())
    # token 1: ratio 1.5, clipped to 1.2; importance 0.8. token 2: ratio 1; importance 3, capped at 2.
    assert terms.loss.item() == pytest.approx(-(0.5 * 0.8 * 1.2 * 2 + 0.5 * 2 * 1 * 2))
    assert terms.max_ratio == pytest.approx(3.0)
    assert (terms.clipped, terms.capped, terms.tokens) == (1, 1, 2)


def test_a_clipped_token_gives_no_gradient_and_a_free_one_gives_importance_times_advantage() -> None:
    logprobs = torch.log(torch.tensor([[0.6, 0.3, 0.2]])).requires_grad_()
    proximal = torch.log(torch.tensor([[0.4, 0.3, 0.1]]))
    behaviour = torch.log(torch.tensor([[0.4, 0.2, 0.1]]))
    weights = torch.tensor([[0.25, 0.25, 0.0]])
    clipped_loss(logprobs, proximal, behaviour, torch.tensor([1.0]), weights, LossOptions()).loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([0.0, -0.25 * 1.5, 0.0])


def test_a_negative_advantage_is_clipped_from_below_only() -> None:
    current = torch.log(torch.tensor([[0.3, 0.9]])).requires_grad_()
    proximal = torch.log(torch.tensor([[0.6, 0.6]]))
    weights = torch.tensor([[0.5, 0.5]])
    terms = clipped_loss(current, proximal, proximal, torch.tensor([-1.0]), weights, LossOptions())
    terms.loss.backward()
    # ratio 0.5 is held at 0.8; ratio 1.5 goes on being pushed down
    assert terms.loss.item() == pytest.approx(0.5 * 0.8 + 0.5 * 1.5)
    assert current.grad is not None
    assert current.grad[0].tolist() == pytest.approx([0.0, 0.75])


@given(
    behaviour=st.lists(st.floats(-1e30, 0.0), min_size=1, max_size=6),
    advantage=st.floats(-10, 10),
    drift=st.floats(-3, 3),
)
@example(behaviour=[-5.0], advantage=-10.0, drift=-3.0)
def test_no_reported_logprob_makes_the_loss_or_its_gradient_infinite(
    behaviour: list[float], advantage: float, drift: float
) -> None:
    reported = torch.tensor([behaviour])
    current = torch.full_like(reported, -1.0).requires_grad_()
    weights = torch.full_like(reported, 1 / len(behaviour))
    proximal = current.detach() + drift
    terms = clipped_loss(current, proximal, reported, torch.tensor([advantage]), weights, LossOptions())
    terms.loss.backward()
    assert terms.loss.isfinite()
    assert current.grad is not None
    assert current.grad.isfinite().all()
    bound = 2 * math.exp(3) * 10  # cap x largest ratio x largest advantage, in float32
    assert current.grad.abs().max() <= bound * (1 + 1e-5)
