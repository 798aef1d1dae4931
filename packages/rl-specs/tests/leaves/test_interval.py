import math

import pytest
import torch

from rl_specs.leaves.interval import clip, limits, random_floats, random_integers, whole, within

INF, NAN = math.inf, math.nan


def test_limits_of_a_dtype():
    assert limits(torch.bool) == (0, 1)
    assert limits(torch.int8) == (-128, 127)
    assert limits(torch.float32) == (
        -torch.finfo(torch.float32).max,
        torch.finfo(torch.float32).max,
    )


def test_within_is_closed_and_refuses_nan():
    assert within(torch.tensor([0.0, 1.0]), 0, 1)
    assert not within(torch.tensor([0.0, 1.1]), 0, 1)
    assert not within(torch.tensor([0.0, NAN]), -INF, INF)
    assert within(torch.tensor([]), 0, 1)


def test_whole_numbers():
    assert whole(torch.tensor([1, 2]))
    assert whole(torch.tensor([1.0, -2.0]))
    assert not whole(torch.tensor([1.0, 0.5]))


def test_clip_compares_before_it_casts():
    low, high = torch.tensor(0, dtype=torch.uint8), torch.tensor(255, dtype=torch.uint8)
    found = clip(torch.tensor([-1.0, 1e30, NAN, 2.6, INF, -INF]), low, high, torch.uint8)
    assert found.tolist() == [0, 255, 0, 3, 255, 0]
    assert found.dtype == torch.uint8


def test_clip_puts_nan_at_the_point_nearest_to_zero():
    value = torch.full((3,), NAN)
    low, high = torch.tensor([-1.0, 2.0, -5.0]), torch.tensor([1.0, 3.0, -4.0])
    assert clip(value, low, high, torch.float32).tolist() == [0.0, 2.0, -4.0]


def test_clip_keeps_the_gradient_inside():
    value = torch.tensor([0.5, 2.0], requires_grad=True)
    clip(value, torch.zeros(2), torch.ones(2), torch.float32).sum().backward()
    assert value.grad.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("low", "high", "mean"), [(2.0, 4.0, 3.0), (2.0, INF, 3.0), (-INF, 2.0, 1.0), (-INF, INF, 0.0)]
)
def test_random_floats_have_the_promised_mean(low, high, mean):
    found = random_floats(torch.tensor(low), torch.tensor(high), torch.Size((20_000,)))
    assert found.isfinite().all()
    # the standard deviation of the mean is at most 1 / sqrt(20,000) = 0.007
    assert found.mean().item() == pytest.approx(mean, abs=0.04)


def test_random_floats_between_the_largest_numbers():
    largest = torch.tensor(torch.finfo(torch.float32).max)
    found = random_floats(-largest, largest, torch.Size((1000,)))
    assert found.isfinite().all()
    assert found.min() < -largest / 2
    assert found.max() > largest / 2


def test_random_integers_reach_all_of_int64():
    low, high = torch.tensor(-(2**63)), torch.tensor(2**63 - 1)
    found = random_integers(low, high, torch.Size((1000,)))
    assert found.min() < -(2**62)
    assert found.max() > 2**62


def test_random_integers_over_half_of_int64_and_more():
    low, high = torch.tensor(-(2**62)), torch.tensor(2**63 - 2)
    found = random_integers(low, high, torch.Size((1000,)))
    assert ((found >= low) & (found <= high)).all()
    assert found.min() < 0
