"""Distances of values from targets, by hand."""

import numpy as np
import pytest
import torch

from rl_value.losses.regression import check_kind, distance, distances_apart, reduced_distance

DISTANCES = {"l1": [3.0, 0.5], "l2": [9.0, 0.25], "smooth_l1": [2.5, 0.125]}
SLOPES = {"l1": [1.0, 1.0], "l2": [6.0, 1.0], "smooth_l1": [1.0, 0.5]}


@pytest.mark.parametrize("kind", DISTANCES)
def test_distance_is_its_equation(kind):
    assert distance(torch.tensor([3.0, 0.5]), torch.zeros(2), kind).tolist() == DISTANCES[kind]


@pytest.mark.parametrize("kind", DISTANCES)
def test_distances_apart_are_the_same_with_their_slopes(kind):
    values, slopes = distances_apart(np.array([3.0, 0.5]), kind)
    assert values.tolist() == DISTANCES[kind]
    assert slopes.tolist() == SLOPES[kind]


def test_reduced_distance_is_the_mean():
    assert reduced_distance(torch.tensor([3.0, 1.0]), torch.zeros(2), "l1", None, "mean") == 2


def test_distance_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="loss_function"):
        check_kind("loss_function", "l3")
