"""Means and statistics over the steps that count, by hand."""

import pytest
import torch

from rl_value.masked_means import (
    effective_sample_size,
    explained_variance,
    ratio_statistics,
    reduce,
    standardise,
    variance,
)


def test_reduce_is_the_mean_of_the_steps_that_count():
    values, counted = torch.tensor([[1.0], [5.0]]), torch.tensor([True, False])
    assert reduce(values, counted) == 1
    assert reduce(values, torch.zeros(2, dtype=torch.bool)) == 0


def test_standardise_puts_zeros_where_steps_do_not_count():
    values, counted = torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False])
    expected = [-(0.5**0.5), 0.5**0.5, 0.0]
    assert standardise(values, counted).tolist() == pytest.approx(expected)


def test_effective_sample_size_of_equal_weights_is_one():
    assert effective_sample_size(torch.zeros(5, 1), None) == 1


def test_effective_sample_size_of_two_weights_is_the_equation():
    log_weight = torch.tensor([[0.0], [2.0]]).log1p()
    assert effective_sample_size(log_weight, None) == pytest.approx(4**2 / (2 * 10))


def test_ratio_statistics_are_of_the_steps_that_count():
    ratio = torch.tensor([[1.0], [3.0], [9.0]])
    counted = torch.tensor([True, True, False])
    assert ratio_statistics(ratio, counted) == {"max_ratio": 3.0, "mean_ratio": 2.0}


def test_explained_variance_of_the_target_itself_is_one():
    target = torch.tensor([[1.0], [2.0], [3.0]])
    assert explained_variance(target, target, None) == 1


def test_explained_variance_of_a_constant_is_zero():
    target = torch.tensor([[1.0], [2.0], [3.0]])
    assert explained_variance(torch.full_like(target, 7.0), target, None) == 0


def test_variance_divides_by_the_number_of_steps():
    assert variance(torch.tensor([1.0, 3.0]), None) == 1
    counted = torch.tensor([True, True, False])
    assert variance(torch.tensor([1.0, 3.0, 9.0]), counted) == 1
