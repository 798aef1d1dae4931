"""Losses that others are compared with, on cases that can be computed by hand."""

import pytest
import torch

from rl_value.reference import grpo


@pytest.mark.parametrize(("over", "loss"), [("sequence", -1.0), ("token", -5 / 3)])
def test_the_objective_of_equal_policies_is_the_mean_advantage(over, loss):
    zero = [torch.zeros(2), torch.zeros(1)]
    assert grpo(zero, zero, [3.0, -1.0], (0.2, 0.2), over=over).item() == pytest.approx(loss)
