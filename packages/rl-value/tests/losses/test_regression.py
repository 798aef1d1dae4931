"""Distances of values from targets, by hand."""

import pytest
import torch

from rl_value.losses.regression import distance, reduced_distance

DISTANCES = {"l1": [3.0, 0.5], "l2": [9.0, 0.25], "smooth_l1": [2.5, 0.125]}


@pytest.mark.parametrize("kind", DISTANCES)
def test_distance_is_its_equation(kind):
    assert distance(torch.tensor([3.0, 0.5]), torch.zeros(2), kind).tolist() == DISTANCES[kind]


def test_reduced_distance_is_the_mean():
    assert reduced_distance(torch.tensor([3.0, 1.0]), torch.zeros(2), "l1", None, "mean") == 2


def test_distance_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="loss: expected 'l1', 'l2' or 'smooth_l1', got 'l3'"):
        distance(torch.ones(1), torch.ones(1), "l3")
