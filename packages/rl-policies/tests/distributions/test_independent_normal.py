import pytest
import torch
from torch import distributions as torch_dist
from torch.testing import assert_close

from rl_policies import IndependentNormal

LOC = torch.tensor([[0.0, 1.0, -2.0], [3.0, 0.0, 0.5]], dtype=torch.float64)
SCALE = torch.tensor([[0.5, 1.0, 2.0], [0.1, 3.0, 1.5]], dtype=torch.float64)
VALUE = torch.tensor([[0.3, -1.0, 2.0], [2.9, 4.0, 0.0]], dtype=torch.float64)


def peer(loc=LOC, scale=SCALE, dims=1):
    return torch_dist.Independent(torch_dist.Normal(loc, scale), dims)


@pytest.mark.parametrize("dims", [0, 1, 2])
def test_log_prob_and_entropy_equal_torch(dims):
    dist = IndependentNormal(LOC, SCALE, event_dim=dims)
    assert_close(dist.log_prob(VALUE), peer(dims=dims).log_prob(VALUE))
    assert_close(dist.entropy(), peer(dims=dims).entropy())
    assert dist.batch_shape == LOC.shape[: 2 - dims]


def test_gradients_equal_torch():
    found = []
    for make in (IndependentNormal, peer):
        loc, scale = (each.clone().requires_grad_() for each in (LOC, SCALE))
        dist = make(loc, scale)
        (dist.log_prob(VALUE) + dist.entropy()).sum().backward()
        found.append((loc.grad, scale.grad))
    assert_close(*found)


def test_samples_have_the_mean_and_the_deviation():
    sample = IndependentNormal(LOC, SCALE).sample((40_000,))
    # six standard errors
    assert ((sample.mean(0) - LOC).abs() < 6 * SCALE / 200).all()
    assert ((sample.std(0) - SCALE).abs() < 6 * SCALE / 280).all()


def test_samples_are_normal():
    sample = IndependentNormal(LOC, SCALE).sample((40_000,))
    shares = torch_dist.Normal(LOC, SCALE).cdf(sample).sort(0).values
    even = torch.linspace(0, 1, 40_000, dtype=torch.float64)[:, None, None]
    # Kolmogorov's distance passes 0.0122 once in ten million times
    assert (shares - even).abs().max() < 0.0122


def test_rsample_carries_the_gradient_and_sample_does_not():
    loc, scale = (each.clone().requires_grad_() for each in (LOC, SCALE))
    dist = IndependentNormal(loc, scale)
    assert not dist.sample().requires_grad
    sample = dist.rsample((4,))
    assert sample.shape == (4, 2, 3)
    sample.sum().backward()
    assert_close(loc.grad, torch.full_like(LOC, 4.0))
    assert_close(scale.grad, ((sample.detach() - LOC) / SCALE).sum(0))


def test_mean_mode_and_median_are_loc_and_deviation_is_scale():
    dist = IndependentNormal(LOC, SCALE)
    for name in ("mean", "mode", "median", "deterministic_sample"):
        assert torch.equal(getattr(dist, name), LOC)
    assert torch.equal(dist.stddev, SCALE)
    assert_close(dist.variance, SCALE.square())


def test_divergence_equals_torch():
    found = torch_dist.kl_divergence(
        IndependentNormal(LOC, SCALE), IndependentNormal(VALUE, SCALE.flip(0))
    )
    assert_close(found, torch_dist.kl_divergence(peer(), peer(VALUE, SCALE.flip(0))))


def test_number_is_a_constant_scale():
    assert_close(IndependentNormal(LOC, 2.0).log_prob(VALUE), peer(LOC, 2.0).log_prob(VALUE))


def test_validation_checks_values():
    dist = IndependentNormal(LOC, SCALE, validate_args=True)
    with pytest.raises(ValueError, match="support"):
        dist.log_prob(VALUE * torch.nan)
