"""Estimators list the calls of their network once, and follow every change of it."""

import pickle
from copy import deepcopy

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_layout.testing import trajectories
from rl_value import GAE


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(float(factor)))

    def forward(self, observation):
        return self.factor * observation[..., :1]


def critic(factor):
    return TensorDictModule(Scaled(factor), ["observation"], ["state_value"])


def estimator_of(network):
    """An estimator that was called once."""
    estimator = GAE(gamma=0.9, lmbda=0.5, value_network=network)
    estimator(trajectories([3, 2]))
    return estimator


def values_of(estimator):
    return estimator(trajectories([3, 2]))["state_value"]


def by(factor):
    return factor * trajectories([3, 2])["observation"][..., :1]


def replace_module(estimator):
    estimator.value_network.module = Scaled(3)


def replace_network(estimator):
    estimator.value_network = critic(3)


def change_parameter(estimator):
    estimator.value_network.module.factor.data.fill_(3)


def add_hook(estimator):
    estimator.value_network.module.register_forward_hook(lambda _, __, out: 1.5 * out)


def add_hook_on_batches(estimator):
    def hook(_, __, batch):
        return batch.set("state_value", 1.5 * batch["state_value"])

    estimator.value_network.register_forward_hook(hook)


def replace_forward(estimator):
    network, before = estimator.value_network, estimator.value_network.forward

    def forward(batch):
        made = before(batch)
        return made.set("state_value", 1.5 * made["state_value"])

    network.forward = forward


@pytest.mark.parametrize(
    "change",
    [
        replace_module,
        replace_network,
        change_parameter,
        add_hook,
        add_hook_on_batches,
        replace_forward,
    ],
)
def test_a_change_after_the_first_call_is_followed(change):
    estimator = estimator_of(critic(2))
    change(estimator)
    assert values_of(estimator).equal(by(3.0))


def test_a_part_of_a_sequence_may_be_replaced():
    first = TensorDictModule(nn.Identity(), ["observation"], ["seen"])
    last = TensorDictModule(Scaled(2), ["seen"], ["state_value"])
    estimator = estimator_of(TensorDictSequential(first, last))
    estimator.value_network.module[1] = TensorDictModule(Scaled(3), ["seen"], ["state_value"])
    assert values_of(estimator).equal(by(3.0))


@pytest.mark.parametrize("copied", [deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_calls_its_own_network(copied):
    estimator = estimator_of(critic(2))
    copy = copied(estimator)
    copy.value_network.module.factor.data.fill_(3)
    assert values_of(copy).equal(by(3.0))
    assert values_of(estimator).equal(by(2.0))
