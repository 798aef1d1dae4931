"""Normals whose bounds lie far from loc, or nowhere."""

import math

import pytest
import torch
from torch.distributions import kl_divergence

from rl_policies import (
    MaskedCategorical,
    MaskedOneHotCategorical,
    OneHotCategorical,
    TanhNormal,
    TruncatedNormal,
)

INF = math.inf
FAR = [(1.5, 0.01), (-1.5, 0.01), (100.0, 1.0), (38.4, 1.0), (-1e6, 1.0), (3.0, 1e-3)]


@pytest.mark.parametrize(("loc", "scale"), FAR)
def test_samples_far_from_loc_are_near_the_closer_bound(loc, scale):
    torch.manual_seed(0)
    loc, scale = (torch.tensor([x], dtype=torch.float64, requires_grad=True) for x in (loc, scale))
    dist = TruncatedNormal(loc, scale)
    drawn = dist.rsample((2_000,))
    # beyond a bound the tail is exponential, with this rate
    bound = loc.detach().clamp(-1, 1)
    rate = ((loc - bound).abs() / scale.square()).detach()
    depth = ((drawn - bound).abs() * rate).detach()
    assert (drawn.abs() <= 1).all()
    assert (depth.mean() - 1).abs() < 0.1
    drawn.sum().backward()
    assert loc.grad.isfinite().all()
    assert scale.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loc", [1e9, -1e9])
def test_samples_equal_the_closer_bound_at_any_distance(loc, dtype):
    at = torch.tensor([loc], dtype=dtype, requires_grad=True)
    dist = TruncatedNormal(at, 1.0)
    drawn = dist.rsample((100,))
    assert abs(dist.mean.item() - math.copysign(1, loc)) < 1e-6
    drawn.sum().backward()
    assert ((drawn - math.copysign(1, loc)).abs() < 1e-6).all()
    assert at.grad.abs() < 100  # the sample is clamped to the bound


@pytest.mark.parametrize("side", [-1, 1])
def test_means_are_accurate_at_any_distance_of_loc(side):
    at = torch.tensor([side * 3e5], dtype=torch.float64, requires_grad=True)
    mean = TruncatedNormal(at, 1.0).mean
    mean.sum().backward()
    assert abs(side * mean.item() - (1 - 1 / 299_999)) < 1e-9
    assert at.grad.abs() < 1e-3


def test_sample_gradients_equal_finite_differences_across_both_formulas():
    loc = torch.linspace(20, 42, 45, dtype=torch.float64)  # log Φ runs from -200 to -860
    states = []
    for shift in (-1e-6, 0.0, 1e-6):
        torch.manual_seed(1)
        at = (loc + shift).requires_grad_()
        drawn = TruncatedNormal(at, torch.ones(45).double()).rsample()
        (slope,) = torch.autograd.grad(drawn.sum(), at)
        states.append((drawn.detach(), slope))
    numeric = (states[2][0] - states[0][0]) / 2e-6
    torch.testing.assert_close(states[1][1], numeric, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(0.0, INF), (-INF, 0.0), (-INF, INF), (2.0, INF)])
def test_infinite_bound_equals_a_far_finite_one(low, high):
    loc = torch.tensor([0.3, -1.2], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([0.7, 1.5], dtype=torch.float64, requires_grad=True)
    dist = TruncatedNormal(loc, scale, low=low, high=high)
    near = TruncatedNormal(loc, scale, low=max(low, -60.0), high=min(high, 60.0))
    value = torch.full((2,), 2.5 if high > 0 else -2.5, dtype=torch.float64)
    names = ["entropy", "mean", "log_prob"]
    # with two infinite bounds the one draws from the other end
    for name in names if (low, high) == (-INF, INF) else [*names, "rsample"]:
        found = []
        for one in (dist, near):
            torch.manual_seed(0)
            made = getattr(one, name)
            made = made if name == "mean" else made(value) if name == "log_prob" else made()
            grads = torch.autograd.grad(made.sum(), [loc, scale], retain_graph=True)
            found.append((made, *grads))
        torch.testing.assert_close(*found, msg=lambda m, name=name: f"{name}: {m}")


def test_densities_in_the_tail_keep_the_digits_of_double_precision():
    for loc, scale, value in ((3.0, 1e-3, 1.0), (10.0, 1e-3, 0.999)):
        single, double = (
            TruncatedNormal(torch.tensor([loc]).to(kind), torch.tensor([scale]).to(kind))
            for kind in (torch.float32, torch.float64)
        )
        exact = TruncatedNormal(single.loc.double(), single.scale.double())
        x = torch.tensor([value])
        torch.testing.assert_close(single.log_prob(x).double(), exact.log_prob(x.double()))
        assert double.log_prob(x.double()).isfinite()


@pytest.mark.parametrize(("low", "high"), [(0.0, INF), (-INF, INF), (torch.zeros(1), INF)])
def test_tanh_normal_refuses_infinite_bounds(low, high):
    with pytest.raises(ValueError, match=r"expected finite bounds.*TruncatedNormal"):
        TanhNormal(torch.zeros(1), 1.0, low=low, high=high, validate_args=True)


MASK = torch.tensor([True, False, True])


@pytest.mark.parametrize("kind", [MaskedCategorical, MaskedOneHotCategorical])
@pytest.mark.parametrize("both", [True, False])
def test_forbidden_choices_add_nothing_to_the_gradient_of_a_divergence(kind, both):
    p, q = (torch.tensor(x, requires_grad=True) for x in ([0.0, 5.0, 1.0], [0.0, 1.0, 2.0]))
    wanted = kind if both else {MaskedCategorical: torch.distributions.Categorical}.get(kind)
    if both:
        other = kind(logits=q, mask=MASK)
    else:
        other = OneHotCategorical(logits=q) if wanted is None else wanted(logits=q)
    found = kl_divergence(kind(logits=p, mask=MASK), other)
    log_p = p[MASK].log_softmax(-1)
    log_q = q[MASK].log_softmax(-1) if both else q.log_softmax(-1)[MASK]
    expected = (log_p.exp() * (log_p - log_q)).sum()
    torch.testing.assert_close(found, expected)
    ours = torch.autograd.grad(found, [p, q])
    torch.testing.assert_close(ours, torch.autograd.grad(expected, [p, q]))


def test_divergence_is_infinite_if_q_forbids_a_choice_of_p():
    p = OneHotCategorical(logits=torch.tensor([0.0, -200.0]))
    q = OneHotCategorical(logits=torch.tensor([0.0, -INF]))
    assert kl_divergence(p, q) == INF


def integrated_entropy(low, width):
    """By the trapezoid rule, of exp(-low t - t² / 2) on [0, width]."""
    t = torch.linspace(0, min(width, 50 / low), 200_001, dtype=torch.float64)
    log_p = -low * t - t.square() / 2
    log_p = log_p - torch.trapezoid(log_p.exp(), t).log()
    return -torch.trapezoid(log_p.exp() * log_p, t).item()


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("low", [16.0, 21.0, 149.0, 151.0, 1e3, 1e6])
@pytest.mark.parametrize("share", [2.0**-9, 1.0, INF])
def test_entropy_is_accurate_for_bounds_at_any_distance(low, share, side):
    # widths that numbers of the size of the bounds can tell
    width = share if share == INF else share * 2.0 ** -round(math.log2(low))
    loc = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    ends = sorted((side * low, side * (low + width)))
    found = TruncatedNormal(loc, 1.0, low=ends[0], high=ends[1]).entropy()
    assert found.item() == pytest.approx(integrated_entropy(low, width), abs=2e-7)
    assert torch.autograd.grad(found.sum(), loc)[0].isfinite().all()
