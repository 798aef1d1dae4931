from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from rl_policies import TruncatedNormal

CASES = [
    (0.0, 1.0, -1.0, 1.0),
    (0.7, 0.2, -1.0, 1.0),
    (-3.0, 0.5, -1.0, 2.0),
    (9.0, 0.7, -2.0, 1.0),
]


def points(low, high, count=200_001):
    return torch.linspace(low, high, count, dtype=torch.float64)


@pytest.mark.parametrize(("loc", "scale", "low", "high"), CASES)
def test_truncated_normal_agrees_with_numerical_integrals(loc, scale, low, high):
    given = [torch.tensor([value], dtype=torch.float64) for value in (loc, scale)]
    dist = TruncatedNormal(*given, low=low, high=high)
    x = points(low, high)
    density = dist.log_prob(x[:, None]).exp()
    assert_close(torch.trapezoid(density, x), torch.tensor(1.0, dtype=torch.float64))
    assert_close(torch.trapezoid(density * x, x), dist.mean[0], rtol=1e-6, atol=1e-9)
    surprise = torch.where(density > 0, -density * density.log(), 0.0)
    assert_close(torch.trapezoid(surprise, x), dist.entropy(), rtol=1e-6, atol=1e-9)
    torch.manual_seed(0)
    drawn = dist.sample((20_000,))
    assert ((drawn >= low) & (drawn <= high)).all()
    spread = torch.trapezoid(density * (x - dist.mean) ** 2, x).sqrt()
    # five standard errors
    assert (drawn.mean() - dist.mean).abs() < 5 * spread / 20_000**0.5
    assert dist.log_prob(torch.tensor([high + 1.0], dtype=torch.float64)) == -torch.inf


def test_gradients_of_a_truncated_normal_equal_finite_differences():
    loc = torch.tensor([[0.3, -2.0]], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([[0.5, 0.8]], dtype=torch.float64, requires_grad=True)

    def log_prob(loc, scale):
        return TruncatedNormal(loc, scale).log_prob(torch.tensor([[0.1, -0.9]]).double())

    def drawn(loc, scale):
        torch.manual_seed(1)
        return TruncatedNormal(loc, scale).rsample()

    assert torch.autograd.gradcheck(log_prob, (loc, scale))
    assert torch.autograd.gradcheck(drawn, (loc, scale))


def test_truncated_normal_with_loc_far_outside_stays_in_its_bounds():
    dist = TruncatedNormal(torch.tensor([50.0]), torch.tensor([0.1]), low=-1.0, high=1.0)
    assert dist.sample((100,)).isfinite().all()
    assert (dist.mode, dist.sample().item() <= 1.0) == (torch.tensor([1.0]), True)
    assert dist.log_prob(torch.tensor([1.0])).isfinite()


def test_expand_repeats_the_rows():
    loc, scale = torch.tensor([0.3, -2.0]), torch.tensor([0.5, 0.8])
    bounds = {"low": torch.tensor([-0.4, -1.0]), "high": torch.tensor([0.4, 1.0])}
    wide = TruncatedNormal(loc, scale, **bounds).expand((3,))
    same = TruncatedNormal(loc.expand(3, 2), scale.expand(3, 2), **bounds)
    assert wide.sample((7,)).shape == (7, 3, 2)
    for name in ("mean", "mode", "deterministic_sample"):
        assert_close(getattr(wide, name), getattr(same, name), rtol=0, atol=0)
    assert_close(wide.entropy(), same.entropy(), rtol=0, atol=0)
    value = torch.tensor([0.1, -0.9]).expand(3, 2)
    assert_close(wide.log_prob(value), same.log_prob(value), rtol=0, atol=0)
