"""The conformance checks pass on classes of the package and fail on broken ones."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule
from tensordict.nn import ProbabilisticTensorDictSequential as Sequential
from torch import nn

from rl_layout.synthetic import trajectories
from rl_value import (
    GAE,
    A2CLoss,
    ClipPPOLoss,
    DQNLoss,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
)
from rl_value.testing import check_estimator, check_loss

ESTIMATORS = {
    "gae": lambda net: GAE(gamma=0.9, lmbda=0.8, value_network=net),
    "td0": lambda net: TD0Estimator(gamma=0.9, value_network=net),
    "td1": lambda net: TD1Estimator(gamma=0.9, value_network=net),
    "td_lambda": lambda net: TDLambdaEstimator(gamma=0.9, lmbda=0.8, value_network=net),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimator_of_the_package_conforms(name):
    check_estimator(ESTIMATORS[name])


def steps():
    batch = trajectories([3, 4])
    batch["action"] = batch["action"].squeeze(-1)
    batch["sample_log_prob"] = -torch.ones(7)
    return batch


def actor():
    torch.manual_seed(0)
    head = TensorDictModule(nn.Linear(2, 3), ["observation"], ["logits"])
    categorical = torch.distributions.Categorical
    draw = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=categorical)
    return Sequential(head, draw)


def critic():
    return TensorDictModule(nn.Linear(2, 1), ["observation"], ["state_value"])


def dqn():
    torch.manual_seed(0)
    net = TensorDictModule(nn.Linear(2, 3), ["observation"], ["action_value"])
    return DQNLoss(net, action_space="categorical")


LOSSES = {
    "a2c": lambda: A2CLoss(actor(), critic()),
    "dqn": dqn,
    "ppo": lambda: ClipPPOLoss(actor(), critic()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_of_the_package_conforms(name):
    check_loss(LOSSES[name], steps())


class Leaking(TD0Estimator):
    """Adds to each target the mean of all: trajectories reach each other."""

    def estimate(self, valued):
        advantage, target = super().estimate(valued)
        return advantage, target + target.mean()


class BlindToEnds(TD0Estimator):
    """Bootstraps from the state after a termination too."""

    def estimate(self, valued):
        target = valued.reward + valued.gamma * valued.next_value
        return target - valued.value, target


class Overwriting(TD0Estimator):
    """Scales the caller's rewards."""

    def forward(self, tensordict, **settings):
        tensordict["next", "reward"].mul_(2)
        return super().forward(tensordict, **settings)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Leaking, "its own steps alone"),
        (BlindToEnds, "worth nothing"),
        (Overwriting, "no stored entry"),
    ],
)
def test_broken_estimator_fails(broken, promise):
    with pytest.raises(AssertionError, match=promise):
        check_estimator(lambda net: broken(gamma=0.9, value_network=net))


class MeanOfRows(nn.Module):
    """A mean over all rows, padding included."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(2, 1)

    def forward(self, batch):
        error = self.net(batch["observation"].nan_to_num()) - batch["next", "reward"].nan_to_num()
        return TensorDict({"loss": error.square().mean()})


class Nameless(MeanOfRows):
    """Calls its loss otherwise."""

    def forward(self, batch):
        return super().forward(batch).rename_key_("loss", "objective")


@pytest.mark.parametrize(
    ("broken", "promise"),
    [(MeanOfRows, "padded rows do not change the losses"), (Nameless, "begins with 'loss'")],
)
def test_broken_loss_fails(broken, promise):
    with pytest.raises(AssertionError, match=promise):
        check_loss(broken, steps())
