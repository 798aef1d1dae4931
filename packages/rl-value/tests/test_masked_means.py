"""Means over the steps that count, by hand."""

import pytest
import torch

from rl_layout.synthetic import trajectories
from rl_value.masked_means import counted_steps, reduce, standardise


def test_counted_steps_leave_out_padding():
    batch = trajectories([3])
    batch["collector", "mask"] = torch.tensor([True, True, False])
    assert counted_steps(batch).tolist() == [True, True, False]


def test_reduce_is_the_mean_of_the_steps_that_count():
    values, counted = torch.tensor([[1.0], [5.0]]), torch.tensor([True, False])
    assert reduce(values, counted) == 1
    assert reduce(values, torch.zeros(2, dtype=torch.bool)) == 0


def test_standardise_puts_zeros_where_steps_do_not_count():
    values, counted = torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False])
    expected = [-(0.5**0.5), 0.5**0.5, 0.0]
    assert standardise(values, counted).tolist() == pytest.approx(expected)
