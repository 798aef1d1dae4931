"""Recurrent networks that are given rows drawn one by one are warned of."""

import warnings

import pytest
import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch.distributions import Categorical

from rl_layout import keys
from rl_layout.synthetic import trajectories
from rl_value import A2CLoss, DQNLoss


class Counts(torch.nn.Module):
    """Carries a state that it reads, with the mark of first rows, and adds to."""

    def forward(self, x, state, is_init):
        return x + state * ~is_init, state + 1


def body(recurrent):
    if not recurrent:
        return TensorDictModule(torch.nn.ReLU(), ["observation"], ["hidden"])
    return TensorDictModule(
        Counts(), ["observation", "state", "is_init"], ["hidden", ("next", "state")]
    )


def q_loss(recurrent):
    head = TensorDictModule(torch.nn.Linear(2, 3), ["hidden"], ["action_value"])
    return DQNLoss(TensorDictSequential(body(recurrent), head), action_space="categorical")


def policy_loss(recurrent):
    actor = ProbabilisticTensorDictSequential(
        body(recurrent),
        TensorDictModule(torch.nn.Linear(2, 3), ["hidden"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical),
    )
    return A2CLoss(actor, TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"]))


def drawn(places):
    rows = trajectories([10, 10])
    rows["action"], rows["state"] = rows["action"].squeeze(-1), torch.zeros(20, 2)
    rows["advantage"] = rows["value_target"] = torch.ones(20, 1)
    rows["index"] = torch.arange(20)
    return rows[torch.tensor(places)].clone()


ONE_BY_ONE = [9, 3, 17, 1, 12, 7, 15, 5]
IN_A_ROW = [0, 1, 2, 3, 10, 11, 12, 13]


@pytest.mark.parametrize("make", [q_loss, policy_loss])
def test_rows_drawn_one_by_one_for_a_recurrent_network_are_warned_of(make):
    with pytest.warns(UserWarning, match=r"drawn row by row.*SliceSampler"):
        make(True)(drawn(ONE_BY_ONE))


@pytest.mark.parametrize("make", [q_loss, policy_loss])
@pytest.mark.parametrize("why", ["single rows are looked at", "rows in order", "slices", "few"])
def test_other_samples_are_not_warned_of(make, why):
    sample = drawn(IN_A_ROW if why == "rows in order" else ONE_BY_ONE)
    if why == "slices":
        sample[keys.SLICE_IDS] = torch.arange(8)
    sample = sample[:4] if why == "few" else sample
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(why != "single rows are looked at")(sample)


@pytest.mark.parametrize("make", [q_loss, policy_loss])
@pytest.mark.parametrize(
    "places", [ONE_BY_ONE, [11, 4, 19, 7, 0, 14, 9, 2, 16, 5, 12, 18, 3, 8, 15, 1, 17, 6, 10, 13]]
)
def test_rows_shuffled_one_by_one_are_warned_of(make, places):
    with pytest.warns(UserWarning, match=r"rows are cut from the row before and the one after"):
        make(True)(drawn(places).exclude("index"))


@pytest.mark.parametrize("make", [q_loss, policy_loss])
def test_episodes_of_one_step_are_not_warned_of(make):
    rows = trajectories([1] * 9).clone()
    rows["action"], rows["state"] = rows["action"].squeeze(-1), torch.zeros(9, 2)
    rows["advantage"] = rows["value_target"] = torch.ones(9, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(True)(rows)
        make(True)(drawn(IN_A_ROW).exclude("index"))
