import pytest
import torch
from torch.testing import assert_close

from rl_policies.distributions.loc_scale import LocScale, normal_kl


def test_scale_broadcasts_against_loc():
    dist = LocScale(torch.zeros(2, 3), torch.ones(3))
    assert dist.scale.shape == (2, 3)
    assert (dist.batch_shape, dist.event_shape) == ((2,), (3,))


def test_tanh_loc_bounds_the_location():
    dist = LocScale(torch.tensor([-1e6, 0.5, 1e6]), 1.0, upscale=4.0, tanh_loc=True)
    assert_close(dist.loc, torch.tensor([-4.0, 4 * torch.tanh(torch.tensor(0.125)).item(), 4.0]))


def test_expand_repeats_the_rows():
    dist = LocScale(torch.zeros(2, 3), 1.0).expand((5, 2))
    assert (dist.batch_shape, dist.loc.shape) == ((5, 2), (5, 2, 3))


def test_divergence_by_hand():
    p, q = LocScale(torch.zeros(1), 1.0), LocScale(torch.full((1,), 3.0), 2.0)
    by_hand = torch.tensor(2.0).log() + (1 + 9) / 8 - 0.5
    assert_close(normal_kl(p, q), by_hand)


@pytest.mark.parametrize(
    ("loc", "kwargs", "error", "message"),
    [
        (torch.zeros(2, dtype=torch.int32), {}, TypeError, "int32"),
        (0.5, {}, TypeError, "float"),
        (torch.zeros(2, 3), {"scale": torch.ones(2)}, ValueError, r"\(2, 3\) and scale \(2,\)"),
        (torch.zeros(2), {"event_dims": 2}, ValueError, "0 to 1 .* got 2"),
        (torch.zeros(2) / 0, {"validate_args": True}, ValueError, "loc .* 2 of 2 entries"),
        (torch.zeros(2), {"scale": 0.0, "validate_args": True}, ValueError, "scale .* positive"),
    ],
)
def test_loc_scale_refuses_wrong_parameters(loc, kwargs, error, message):
    with pytest.raises(error, match=message):
        LocScale(loc, **{"scale": 1.0, **kwargs})
