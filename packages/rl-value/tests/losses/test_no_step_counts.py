"""A batch in which no step counts gives a loss of 0, and is warned of."""

import warnings

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl_layout import keys
from rl_layout.synthetic import trajectories
from rl_value import DQNLoss


def prepared():
    batch = trajectories([3, 4])
    batch["action"] = batch["action"].squeeze(-1)
    return batch


def q_loss(**settings):
    network = TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["action_value"])
    return DQNLoss(network, action_space="categorical", **settings)


def without_next(batch):
    del batch["next", "observation"]
    batch["next", "terminated"][:] = batch["next", "done"][:] = False


def all_missing(batch):
    batch[keys.NEXT_MISSING] = torch.ones(7, dtype=torch.bool)
    batch["next", "terminated"][:] = batch["next", "done"][:] = False


def all_burnt_in(batch):
    batch["trained"] = torch.zeros(7, dtype=torch.bool)


@pytest.mark.parametrize(
    ("change", "settings", "said"),
    [
        (all_missing, {}, "no step of this batch counts, of 7"),
        (all_burnt_in, {"loss_mask_key": "trained"}, "'trained' is False in all"),
    ],
)
def test_a_batch_without_a_step_that_counts_is_warned_of_once(change, settings, said):
    batch, loss = prepared(), q_loss(**settings)
    change(batch)
    with pytest.warns(UserWarning, match=said):
        assert loss(batch)["loss"].item() == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(batch)


def test_next_observations_that_nobody_stored_are_warned_of():
    # rows drawn one by one, so none has the row that follows it in the batch
    batch = prepared()[torch.tensor([4, 0, 5])].clone()
    without_next(batch)
    with pytest.warns(UserWarning, match="no step of this batch counts, of 3"):
        q_loss()(batch)


def test_a_loss_that_is_0_by_itself_is_not_warned_of():
    batch, loss = prepared(), q_loss()
    batch["next", "reward"][:] = 0
    for one in loss.parameters():
        one.data.zero_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loss(batch)["loss"].item() == 0


def test_a_network_of_unknown_sizes_is_refused_where_a_loss_copies_it():
    network = TensorDictModule(torch.nn.LazyLinear(3), ["observation"], ["action_value"])
    with pytest.raises(ValueError, match=r"lazy layers.*call it once"):
        DQNLoss(network, action_space="categorical")
    DQNLoss(network, action_space="categorical", delay_value=False)(prepared())
