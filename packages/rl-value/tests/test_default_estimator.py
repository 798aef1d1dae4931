"""A target that comes from the default estimator, alongside an advantage that is stored."""

import warnings

import pytest
import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Categorical

from rl_layout.testing import trajectories
from rl_value import GAE, A2CLoss


def networks():
    net = TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["logits"])
    choice = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical)
    critic = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])
    return ProbabilisticTensorDictSequential(net, choice), critic


def half_estimated(critic):
    batch = trajectories([4, 5])
    batch["action"] = torch.zeros(9, dtype=torch.int64)
    return GAE(gamma=0.5, lmbda=0.5, value_network=critic)(batch).exclude("value_target")


def test_a_target_of_default_settings_gives_one_warning():
    actor, critic = networks()
    loss, batch = A2CLoss(actor, critic), half_estimated(critic)
    expected = GAE(gamma=0.99, lmbda=0.95, value_network=critic)(batch.clone())["value_target"]
    message = r"'advantage' is stored and 'value_target' is missing: .*gamma=0\.99, lmbda=0\.95"
    with pytest.warns(UserWarning, match=message):
        loss(batch)
    torch.testing.assert_close(batch["value_target"], expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(batch.exclude("value_target"))


@pytest.mark.parametrize("chosen", [False, True])
def test_default_estimator_is_unused_where_settings_or_estimates_exist(chosen):
    actor, critic = networks()
    loss, batch = A2CLoss(actor, critic), half_estimated(critic)
    if chosen:
        loss.make_value_estimator(gamma=0.5, lmbda=0.5)
    else:
        batch = batch.exclude("advantage")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(batch)
