import functools

import pytest
import torch
from torch import distributions as torch_dist
from torch.testing import assert_close

from rl_policies import TanhNormal

LOC = torch.tensor([[0.0, 1.0, -2.0], [3.0, 0.0, 0.5]], dtype=torch.float64)
SCALE = torch.tensor([[0.5, 1.0, 2.0], [0.1, 0.7, 1.5]], dtype=torch.float64)
LOW = torch.tensor([-1.0, 0.0, -3.0], dtype=torch.float64)
HIGH = torch.tensor([1.0, 5.0, -2.0], dtype=torch.float64)
SHARES = torch.tensor([[0.3, 0.6, 0.05], [0.99, 0.5, 0.2]], dtype=torch.float64)


def pair(low, high):
    """Ours and torch's, each to be made from loc and scale."""
    ours = functools.partial(TanhNormal, low=low, high=high)
    return ours, functools.partial(peer, low=low, high=high)


BOUNDS = pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 1.0), (-0.5, 2.0), (LOW, HIGH), (-1.0, HIGH.abs())]
)


def peer(loc, scale, low, high):
    # torch counts the slope of a scalar once, whatever the size of the event
    half = torch.zeros_like(LOC) + (high - low) / 2
    steps = [
        torch_dist.TanhTransform(cache_size=1),
        torch_dist.AffineTransform(low + half, half, event_dim=1),
    ]
    normal = torch_dist.Independent(torch_dist.Normal(loc, scale), 1)
    return torch_dist.TransformedDistribution(normal, steps, validate_args=False)


@BOUNDS
def test_log_prob_of_stored_values_equals_torch(low, high):
    value = low + (high - low) * SHARES
    found = TanhNormal(LOC, SCALE, low=low, high=high).log_prob(value)
    assert_close(found, peer(LOC, SCALE, low, high).log_prob(value))


@BOUNDS
def test_gradients_equal_torch(low, high):
    value, found = low + (high - low) * SHARES, []
    for make in (
        lambda a, b: TanhNormal(a, b, low=low, high=high),
        lambda a, b: peer(a, b, low, high),
    ):
        loc, scale = (each.clone().requires_grad_() for each in (LOC, SCALE))
        make(loc, scale).log_prob(value).sum().backward()
        found.append((loc.grad, scale.grad))
    assert_close(*found)


@BOUNDS
def test_gradient_through_a_sample_equals_torch(low, high):
    found = []
    for make in (
        lambda a, b: TanhNormal(a, b, low=low, high=high),
        lambda a, b: peer(a, b, low, high),
    ):
        torch.manual_seed(3)
        loc, scale = (each.clone().requires_grad_() for each in (LOC, SCALE))
        dist = make(loc, scale)
        sample = dist.rsample((4,))
        (dist.log_prob(sample).sum() + 2 * sample.square().sum()).backward()
        found.append((loc.grad, scale.grad))
    assert_close(*found)


def test_gradient_at_a_detached_sample_equals_torch():
    loc, scale = (each.clone().requires_grad_() for each in (LOC, SCALE))
    dist = TanhNormal(loc, scale)
    with torch.no_grad():
        sample = dist.rsample()
    dist.log_prob(sample).sum().backward()
    other = [each.clone().requires_grad_() for each in (LOC, SCALE)]
    peer(*other, -1.0, 1.0).log_prob(sample.clone()).sum().backward()
    assert_close((loc.grad, scale.grad), tuple(each.grad for each in other), rtol=1e-6, atol=1e-8)


def test_density_integrates_to_one():
    dist = TanhNormal(LOC[0, 1:2], SCALE[0, 1:2], low=0.0, high=5.0)
    grid = torch.linspace(0, 5, 200_001, dtype=torch.float64)[1:-1, None]
    assert_close(dist.log_prob(grid).exp().sum() * 5 / 200_000, torch.tensor(1.0).double())


@BOUNDS
def test_samples_follow_the_distribution(low, high):
    sample = TanhNormal(LOC, SCALE, low=low, high=high).sample((20_000,))
    inside = (2 * (sample - low) / (high - low) - 1).clamp(-1 + 1e-15, 1 - 1e-15)
    shares = torch_dist.Normal(LOC, SCALE).cdf(inside.atanh()).sort(0).values
    even = torch.linspace(0, 1, 20_000, dtype=torch.float64)[:, None, None]
    # Kolmogorov's distance passes 0.0172 once in ten million times
    assert (shares - even).abs().max() < 0.0172


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_never_pass_their_bounds(dtype):
    dist = TanhNormal(torch.tensor([-60.0, 60.0], dtype=dtype), 5.0, low=-0.1, high=0.7)
    sample = dist.sample((500,))
    assert (sample >= dist.low).all()
    assert (sample <= dist.high).all()


def test_log_prob_of_its_own_sample_is_exact_far_out():
    dist = TanhNormal(torch.tensor([40.0]), 1.0)
    sample = dist.sample()
    # private: the sample is rounded to 1, only the cache still has u
    u = dist._drawn.origin[0].double()
    by_hand = -0.5 * (u - 40) ** 2 - 0.918938533204672 - 2 * (0.693147180559945 - u)
    assert sample == 1
    assert_close(dist.log_prob(sample).double(), by_hand.sum(), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_value_on_a_bound_has_a_finite_log_prob(dtype):
    dist = TanhNormal(torch.zeros(2, dtype=dtype), 1.0, low=-2.0, high=4.0)
    assert dist.log_prob(torch.tensor([-2.0, 4.0], dtype=dtype)).isfinite()


def test_log_prob_of_a_sample_changed_in_place_is_recomputed():
    dist = TanhNormal(LOC, SCALE)
    sample = dist.sample()
    sample.copy_(2 * SHARES - 1)
    assert_close(dist.log_prob(sample), TanhNormal(LOC, SCALE).log_prob(2 * SHARES - 1))


@BOUNDS
def test_mode_is_the_image_of_loc(low, high):
    dist = TanhNormal(LOC, SCALE, low=low, high=high)
    wanted = low + (high - low) * (1 + LOC.tanh()) / 2
    for name in ("mode", "median", "deterministic_sample"):
        assert_close(getattr(dist, name), wanted)


def test_mean_and_entropy_raise_and_say_how_to_estimate_them():
    dist = TanhNormal(LOC, SCALE)
    with pytest.raises(NotImplementedError, match="rsample"):
        _ = dist.mean
    with pytest.raises(NotImplementedError, match="rsample"):
        dist.entropy()


def test_divergence_equals_that_of_the_normal_distributions():
    others = TanhNormal(LOC.flip(0), SCALE), torch_dist.Normal(LOC.flip(0), SCALE)
    found = torch_dist.kl_divergence(TanhNormal(LOC, SCALE), others[0])
    assert_close(found, torch_dist.kl_divergence(torch_dist.Normal(LOC, SCALE), others[1]).sum(-1))


def test_divergence_across_bounds_raises():
    with pytest.raises(ValueError, match="bounds agree"):
        torch_dist.kl_divergence(TanhNormal(LOC, SCALE), TanhNormal(LOC, SCALE, high=2.0))


def test_log_prob_sums_over_event_dims():
    dist = TanhNormal(LOC, SCALE, event_dims=0)
    assert_close(
        dist.log_prob(2 * SHARES - 1).sum(-1), TanhNormal(LOC, SCALE).log_prob(2 * SHARES - 1)
    )
    assert dist.sample((5,)).shape == (5, 2, 3)


def test_expand_repeats_the_rows():
    dist = TanhNormal(LOC, SCALE).expand((4, 2))
    assert dist.log_prob(dist.sample()).shape == (4, 2)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (HIGH, LOW)])
def test_crossed_bounds_raise(low, high):
    with pytest.raises(ValueError, match="low must be below high"):
        TanhNormal(LOC, SCALE, low=low, high=high, validate_args=True)


def test_values_of_another_size_raise():
    with pytest.raises(ValueError, match=r"end in \(3,\): got shape \(2, 2\)"):
        TanhNormal(LOC, SCALE).log_prob(torch.zeros(2, 2))


def test_validation_raises_for_values_outside_the_bounds():
    with pytest.raises(ValueError, match="support"):
        TanhNormal(LOC, SCALE, validate_args=True).log_prob(LOC)


@pytest.mark.parametrize("far", [-50.0, 50.0])
def test_rounding_never_passes_a_bound(far):
    low, high = torch.tensor(-1.9), torch.tensor(0.8)
    assert low + (high - low) / 2 * 2 > high  # what the sum makes of this pair of bounds
    dist = TanhNormal(torch.full((3,), far), 1e-3, low=-1.9, high=0.8)
    for value in (dist.mode, dist.rsample(), dist.sample((5,))):
        assert bool(((value >= low) & (value <= high)).all())
