"""Estimates of n-step rows."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    TensorDictModule,
)

from rl_layout import keys
from rl_layout.testing import EndKind, trajectories
from rl_value import GAE, TD0Estimator, VTrace

GAMMA, LMBDA = 0.9, 0.7

FLAGS = (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED)

STEPS = keys.STEPS_TO_NEXT_OBS

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


def test_n_step_rows_share_the_next_observation_that_one_of_them_lost():
    batch = trajectories([3], EndKind.TRUNCATED)
    batch["next", "observation"] = batch["next", "observation"][[2, 2, 2]]
    batch["next", "observation"][2] = float("nan")
    batch[("next", "done")] = batch[("next", "truncated")] = torch.ones(3, 1, dtype=torch.bool)
    batch[STEPS] = torch.tensor([[3], [2], [1]])
    batch[keys.NEXT_MISSING] = torch.tensor([False, False, True])
    net = TensorDictModule(lambda x: x[:, 1:], ["observation"], ["state_value"])
    found = TD0Estimator(gamma=1.0, value_network=net)(batch)
    assert found["next", "state_value"].flatten().tolist() == [3, 3, 0]
    assert found[keys.NEXT_MISSING].tolist() == [False, False, True]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("slice_rows", [False, True])
def test_n_step_rows_equal_sums_over_their_jumps(
    n, slice_rows, curve_network, critic, n_step, prepared, trajectories_of
):
    batch = n_step(prepared(trajectories([7, 1, 4, 6], [*KINDS, EndKind.CUT])), n, GAMMA)
    if slice_rows:  # a sample of two slices, cut out of the middle
        batch = torch.cat([batch[1:5], batch[12:16]])
        batch[keys.IS_INIT][4] = True
    _, runs = trajectories_of(batch)
    value = curve_network()(batch["observation"])[:, 0]
    ahead = curve_network()(batch["next", "observation"])[:, 0]
    ahead = torch.where(batch["next", "terminated"][:, 0], 0, ahead)
    steps, reward = batch[keys.STEPS_TO_NEXT_OBS][:, 0], batch["next", "reward"][:, 0]
    for lmbda in (0.0, LMBDA, 1.0):
        expected = torch.zeros(len(batch), dtype=torch.float64)
        for rows in runs:
            for i in reversed(rows):
                j, discount = i + int(steps[i]), GAMMA ** int(steps[i])
                later = (1 - lmbda) * ahead[i] + lmbda * expected[j] if j in rows else ahead[i]
                expected[i] = (reward[i] + discount * later).detach()
        found = GAE(gamma=GAMMA, lmbda=lmbda, value_network=critic())(batch.clone())
        torch.testing.assert_close(found["value_target"][:, 0], expected)
        torch.testing.assert_close(found["advantage"][:, 0], (expected - value).detach())
        torch.testing.assert_close(
            found["next", "state_value"].detach(),
            curve_network()(batch["next", "observation"]).detach(),
        )
    one = TD0Estimator(gamma=GAMMA, value_network=critic())(batch.clone())
    torch.testing.assert_close(one["value_target"][:, 0], (reward + GAMMA**steps * ahead).detach())


def test_rows_of_one_step_equal_plain_steps_where_another_network_values_next_states(prepared):
    batch = prepared(trajectories([7, 1, 4], KINDS))
    nets = [
        TensorDictModule(torch.nn.Linear(2, 1).double(), ["observation"], ["state_value"])
        for _ in range(2)
    ]
    batch["observation"], after = batch["observation"].double(), batch["next", "observation"]
    batch["next", "observation"] = after.double()
    estimator = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=nets[0])
    params = TensorDict.from_module(nets[1])
    expected = estimator(batch.clone(), target_params=params)
    batch[STEPS] = torch.ones(len(batch), 1, dtype=torch.int64)
    found = estimator(batch, target_params=params)
    for key in ("advantage", "value_target"):
        torch.testing.assert_close(found[key], expected[key])


def test_n_step_rows_are_refused_where_they_make_no_sense(actor, critic, n_step, prepared):
    batch = n_step(prepared(trajectories([7])), 3, GAMMA)
    with pytest.raises(ValueError, match="shifted=True reads single steps"):
        GAE(gamma=0.9, lmbda=0.9, value_network=critic(), shifted=True)(batch)
    with pytest.raises(ValueError, match="V-trace weighs single actions"):
        VTrace(gamma=0.9, actor_network=actor(), value_network=critic())(batch)
