"""What gradients of estimates reach, and what they do not."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    TensorDictModule,
)

from rl_layout import keys
from rl_layout.testing import EndKind, trajectories
from rl_value import GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator, VTrace

GAMMA, LMBDA = 0.9, 0.7

FLAGS = (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED)


def test_a_target_network_gives_the_next_values(critic, prepared):
    batch = prepared(trajectories([3, 4], EndKind.TRUNCATED))
    net, target = critic(), critic()
    with torch.no_grad():
        target.module.weight.mul_(2)
    estimator = TD0Estimator(gamma=GAMMA, value_network=net)
    found = estimator(batch.clone(), target_params=TensorDict.from_module(target))
    ahead = target.module(batch["next", "observation"])
    torch.testing.assert_close(found["value_target"], batch["next", "reward"] + GAMMA * ahead)
    torch.testing.assert_close(found["state_value"], net.module(batch["observation"]))
    both = estimator(
        batch.clone(),
        params=TensorDict.from_module(target),
        target_params=TensorDict.from_module(net),
    )
    torch.testing.assert_close(both["state_value"], target.module(batch["observation"]))
    with pytest.raises(ValueError, match="takes no target_params"):
        GAE(gamma=0.9, lmbda=0.9, value_network=net, shifted=True)(
            batch, target_params=TensorDict.from_module(target)
        )


def test_stored_values_are_used_where_they_are_wanted(curve_network, critic, prepared):
    batch = prepared(trajectories([3, 2], EndKind.TRUNCATED))
    batch["state_value"] = torch.arange(5.0).double()[:, None]
    found = GAE(gamma=0.5, lmbda=0.0, value_network=critic(), skip_existing=True)(batch.clone())
    assert torch.equal(found["state_value"], batch["state_value"])
    ends = curve_network()(batch["next", "observation"])[:, 0]
    expected = torch.tensor([1.0, 2.0, ends[2].item(), 4.0, ends[4].item()]).double()
    torch.testing.assert_close(found["next", "state_value"][:, 0], expected)
    batch["next", "state_value"] = torch.full((5, 1), 7.0).double()
    net = TensorDictModule(lambda x: 1 / 0, ["observation"], ["state_value"])
    for estimator in (
        GAE(gamma=0.5, lmbda=0.0, value_network=net, skip_existing=True),
        GAE(gamma=0.5, lmbda=0.0, value_network=None),
    ):
        found = estimator(batch.clone())
        torch.testing.assert_close(found["value_target"], batch["next", "reward"] + 3.5)
    with pytest.raises(ValueError, match=r"'state_value' or .* is missing, and there is no value"):
        GAE(gamma=0.5, lmbda=0.0, value_network=None)(batch.exclude("state_value"))


def test_gradients_flow_only_where_they_are_wanted(critic, prepared):
    batch = prepared(trajectories([3, 2], EndKind.TRUNCATED))
    net = critic()
    assert not GAE(gamma=0.9, lmbda=0.9, value_network=net)(batch.clone())[
        "advantage"
    ].requires_grad
    batch["observation"].requires_grad_()
    reward = batch["next", "reward"].requires_grad_()
    found = GAE(gamma=0.9, lmbda=0.9, value_network=net, differentiable=True)(batch.clone())
    (found["advantage"].sum() + found["value_target"].square().sum()).backward()
    assert reward.grad.abs().sum() > 0
    assert batch["observation"].grad.abs().sum() > 0


@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize("kind", [GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator, VTrace])
def test_no_estimator_trains_a_network(kind, passed, actor, critic, prepared):
    net, acts = critic(), actor()
    acts[0].module = torch.nn.Linear(2, 3)
    settings = {"lmbda": 0.8} if kind in (GAE, TDLambdaEstimator) else {}
    settings |= {"actor_network": acts} if kind is VTrace else {}
    batch = prepared(trajectories([3, 2], EndKind.TRUNCATED))
    batch["next", "reward"].requires_grad_()
    params = TensorDict.from_module(net) if passed else None
    estimator = kind(gamma=0.9, value_network=net, differentiable=True, **settings)
    found = estimator(batch, params=params, target_params=params)
    (found["advantage"].square().sum() + found["value_target"].sum()).backward()
    assert all(weight.grad is None for weight in (*net.parameters(), *acts.parameters()))
    assert all(weight.requires_grad for weight in (*net.parameters(), *acts.parameters()))
