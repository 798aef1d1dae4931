import copy
import pickle

import pytest
from tensordict.nn import TensorDictModule
from torch import nn

from rl_value import GAE, DQNLoss


def test_keys_are_read_by_role_as_set_keys_sets_them():
    loss = DQNLoss(
        TensorDictModule(nn.Linear(2, 3), ["o"], ["action_value"]), action_space="one_hot"
    )
    for module in (loss, GAE(gamma=0.9, lmbda=0.9)):
        module.set_keys(reward=("agents", "reward"))
        assert module.tensor_keys.reward == ("agents", "reward")
        assert module.tensor_keys.value == "state_value"
        with pytest.raises(AttributeError, match="no entry 'speed' here: there are advantage"):
            module.tensor_keys.speed  # noqa: B018


def test_keys_are_copied_and_pickled():
    keys = GAE(gamma=0.9, lmbda=0.9).tensor_keys
    keys.set(done="over")
    assert copy.deepcopy(keys).done == pickle.loads(pickle.dumps(keys)).done == "over"
