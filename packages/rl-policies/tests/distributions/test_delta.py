from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule, set_interaction_type
from torch import nn

from rl_policies import Delta, ProbabilisticActor


def test_tolerances_decide_equality_with_the_point():
    dist = Delta(torch.tensor([100.0, 0.0]), atol=0.1, rtol=0.01)
    values = torch.tensor([[101.0, 0.05], [101.2, 0.0], [100.0, 0.2]])
    assert dist.log_prob(values).tolist() == [0.0, -torch.inf, -torch.inf]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_point_of_another_dtype_is_compared_exactly(dtype):
    dist = Delta(torch.tensor([[1, 0], [1, 1]]).to(dtype))
    assert dist.log_prob(torch.ones(2, 2).to(dtype)).tolist() == [-torch.inf, 0.0]
    assert dist.sample().dtype == dtype
    assert dist.entropy().dtype == torch.float32


def test_delta_has_the_shapes_of_its_parameter():
    param = torch.zeros(5, 3, 2)
    assert (Delta(param).batch_shape, Delta(param).event_shape) == ((5, 3), (2,))
    assert Delta(param, event_dims=2).log_prob(torch.zeros(4, 5, 3, 2)).shape == (4, 5)
    number = Delta(torch.zeros(5), event_dims=0)
    assert number.log_prob(torch.zeros(5)).shape == (5,)
    wide = Delta(param).expand((7, 5, 3))
    assert wide.sample((4,)).shape == (4, 7, 5, 3, 2)
    assert wide.log_prob(torch.zeros(7, 5, 3, 2)).shape == (7, 5, 3)


def test_gradient_flows_through_rsample_only():
    param = torch.ones(2, requires_grad=True)
    assert not Delta(param).sample().requires_grad
    Delta(param).rsample((3,)).sum().backward()
    assert param.grad.tolist() == [3.0, 3.0]


def test_actor_without_a_distribution_has_log_prob_zero():
    net = TensorDictModule(nn.Linear(3, 2), ["observation"], ["param"])
    actor = ProbabilisticActor(net, ["param"], return_log_prob=True)
    rows = TensorDict({"observation": torch.randn(5, 3)}, [5])
    for kind in (InteractionType.RANDOM, InteractionType.DETERMINISTIC):
        with set_interaction_type(kind):
            found = actor(rows.clone())
        assert torch.equal(found["action"], found["param"])
        assert torch.equal(found["sample_log_prob"], torch.zeros(5))


@pytest.mark.parametrize(
    ("param", "kwargs", "error", "message"),
    [
        (1.0, {}, TypeError, "param must be a tensor: got float"),
        (torch.zeros(2), {"event_dims": 2}, ValueError, "0 to 1 .* got 2"),
        (torch.tensor([0.0, torch.nan]), {"validate_args": True}, ValueError, "holds 1 NaN"),
    ],
)
def test_delta_refuses_wrong_parameters(param, kwargs, error, message):
    with pytest.raises(error, match=message):
        Delta(param, **kwargs)


def test_values_of_another_shape_raise():
    with pytest.raises(ValueError, match=r"end in \(2,\): got shape \(5, 3\)"):
        Delta(torch.zeros(5, 2)).log_prob(torch.zeros(5, 3))
