"""Distributional Q-learning, against the paper."""

import pytest
import torch
from tensordict.nn import (
    TensorDictModule,
)

from rl_layout import keys, recurrent_mode
from rl_layout.testing import EndKind, environments, trajectories
from rl_value import (
    DistributionalDQNLoss,
    DQNLoss,
)
from rl_value.losses.distributional_dqn import project

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]

ACTIONS, ATOMS = 3, 5


def distributional(**settings):
    shape = torch.nn.Sequential(
        torch.nn.Linear(2, ATOMS * ACTIONS, dtype=torch.float64),
        torch.nn.Unflatten(-1, (ATOMS, ACTIONS)),
        torch.nn.LogSoftmax(-2),
    )
    net = TensorDictModule(shape, ["observation"], ["action_value"])
    support = torch.linspace(-2, 2, ATOMS, dtype=torch.float64)
    settings = {"action_space": "categorical", "support": support, **settings}
    return DistributionalDQNLoss(net, gamma=0.9, **settings)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_distributions_are_projected_as_in_the_paper(double, flat, moved, q_batch):
    made = trajectories([3, 4, 2], KINDS) if flat else environments(2, 5, [3, 4], KINDS)
    batch = q_batch(made)
    batch[keys.MASK] = torch.arange(batch.numel()).view(batch.batch_size) != 7
    loss = distributional(double_dqn=double)
    moved(loss)
    rows, z = batch.reshape(-1), loss.support.tolist()
    log_p = loss.value_network.module(rows["observation"])
    ahead = loss.target_value_network.module(rows["next", "observation"]).exp()
    chooser = loss.value_network.module(rows["next", "observation"]).exp() if double else ahead
    errors = []
    for i, row in enumerate(rows.unbind(0)):
        best = max(range(ACTIONS), key=lambda a: sum(z[k] * chooser[i, k, a] for k in range(ATOMS)))
        target = [0.0] * ATOMS
        for k in range(ATOMS):  # algorithm 1
            discount = 0.0 if row["next", "terminated"] else 0.9
            place = (min(max(row["next", "reward"].item() + discount * z[k], -2), 2) + 2) / 1.0
            below = int(place)
            share = place - below
            target[below] += ahead[i, k, best].item() * (1 - share)
            if share:
                target[below + 1] += ahead[i, k, best].item() * share
        errors.append(-sum(target[k] * log_p[i, k, row["action"]] for k in range(ATOMS)))
    real = rows[keys.MASK]
    torch.testing.assert_close(loss(batch)["loss"], torch.stack(errors)[real].mean())
    found = batch["td_error"].reshape(-1)
    torch.testing.assert_close(found[real], torch.stack(errors)[real].detach())


def test_a_distribution_of_n_step_rows_discounts_by_their_steps(moved, q_batch):
    batch = q_batch(trajectories([3, 4], KINDS[:2]))
    steps = torch.tensor([3, 2, 1, 4, 3, 2, 1])[:, None]
    ends = steps[:, 0] + torch.arange(7) - 1
    for key in ("observation", "done", "terminated", "truncated"):
        batch["next", key] = batch["next", key][ends]
    batch[keys.STEPS_TO_NEXT_OBS] = steps
    loss = distributional()
    moved(loss)
    ahead = loss.target_value_network.module(batch["next", "observation"]).exp()
    best = (ahead * loss.support[:, None]).sum(1).argmax(-1)
    alive = ~batch["next", "terminated"]
    atoms = batch["next", "reward"] + 0.9**steps * alive * loss.support
    target = project(atoms, ahead[torch.arange(7), :, best], loss.support)
    log_p = loss.value_network.module(batch["observation"])
    chosen = log_p[torch.arange(7), :, batch["action"]]
    expected = -(target.detach() * chosen).sum(-1).mean()
    torch.testing.assert_close(loss(batch)["loss"], expected)


@pytest.mark.parametrize("marked", [False, True])
def test_a_distribution_is_learnt_only_where_its_next_state_is_known(marked, q_batch):
    batch, loss = q_batch(trajectories([3, 4, 2], KINDS)), distributional()
    loss(batch)
    errors = batch["td_error"].clone()
    counted = torch.tensor([1, 1, 1, 1, 1, 1, 0, 1, 0]).bool()
    if marked:
        batch[keys.NEXT_MISSING] = ~counted
        batch["next", "observation"][~counted] = float("nan")
    else:
        batch = batch.exclude(("next", "observation"))
    torch.testing.assert_close(loss(batch)["loss"].detach(), errors[counted].mean())
    assert not batch["td_error"][~counted].any()


def test_a_distribution_of_n_step_rows_is_learnt_where_its_next_state_is_known(q_batch):
    batch, loss = q_batch(trajectories([4], EndKind.CUT)), distributional()
    batch[keys.STEPS_TO_NEXT_OBS] = torch.tensor([[2], [2], [2], [1]])
    loss(batch)
    errors = batch["td_error"].clone()
    batch[keys.NEXT_MISSING] = torch.tensor([False, False, True, False])
    batch["next", "observation"][2] = float("nan")
    torch.testing.assert_close(loss(batch)["loss"].detach(), errors[[0, 1, 3]].mean())


def test_padding_is_no_part_of_the_gradients_of_distributions(q_batch):
    batch, loss = q_batch(trajectories([3, 4], KINDS[:2])), distributional()
    batch[keys.MASK] = torch.arange(7) != 6
    parameters = list(loss.value_network.parameters())
    expected = torch.autograd.grad(loss(batch)["loss"], parameters)
    batch["observation"][6] = float("nan")
    torch.testing.assert_close(torch.autograd.grad(loss(batch)["loss"], parameters), expected)


def test_distributional_loss_ignores_next_states_of_terminated_steps(q_batch):
    batch, loss = q_batch(trajectories([3, 4], KINDS[:2])), distributional()
    expected = loss(batch)["loss"]
    batch["next", "observation"][2] = float("nan")
    torch.testing.assert_close(loss(batch)["loss"], expected)


def test_nan_reward_stays_in_its_row_of_distributions(q_batch):
    batch, loss = q_batch(trajectories([3, 4], KINDS[:2])), distributional(reduction="none")
    expected = loss(batch)["loss"]
    batch["next", "reward"][5] = float("nan")
    batch["next", "reward"][1] = float("inf")
    found = loss(batch)["loss"].flatten().isnan()
    assert found.tolist() == [False] * 5 + [True] + [False]
    others = [0, 2, 3, 4, 6]
    torch.testing.assert_close(loss(batch)["loss"][others], expected[others])


@pytest.mark.parametrize("make", [lambda net: DQNLoss(net, action_space="categorical"), None])
def test_networks_are_called_in_recurrent_mode(make, q_network, q_batch):
    batch, modes = q_batch(trajectories([3, 4], KINDS[:2])), []
    loss = distributional(double_dqn=True) if make is None else make(q_network())
    for net in (loss.value_network, loss.target_value_network):
        net.module.register_forward_pre_hook(lambda *_: modes.append(recurrent_mode()))
    loss(batch)
    assert len(modes) >= 2
    assert all(modes)


def test_a_projection_keeps_the_sum_and_exact_places():
    support = torch.tensor([0.0, 1.0, 2.0])
    found = project(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([[0.2, 0.3, 0.5]]), support)
    torch.testing.assert_close(found, torch.tensor([[0.2, 0.5, 0.3]]))


def test_distributional_loss_refuses_settings_that_it_cannot_have(q_network):
    with pytest.raises(NotImplementedError, match="a target of its own"):
        distributional().make_value_estimator()
    with pytest.raises(ValueError, match="support: expected returns"):
        distributional(support=None)
    with pytest.raises(ValueError, match="gamma: expected"):
        DistributionalDQNLoss(q_network(), gamma=2, action_space="one_hot")


@pytest.mark.parametrize(
    "support", [[0.0, 1.0, 5.0], [2.0, 1.0, 0.0], [1.0, 1.0], [1.0], [0, 1, 2]]
)
def test_a_support_that_is_not_even_is_refused(support):
    with pytest.raises(ValueError, match=r"support: expected returns .*, floats evenly spaced"):
        distributional(support=torch.tensor(support))


def test_distributions_of_another_shape_are_refused(q_network, q_batch):
    batch = q_batch(trajectories([3, 4]))
    with pytest.raises(ValueError, match=r"expected log-prob.* \[7, 4, 'n'\].*got \[7, 5, 3\]"):
        distributional(support=torch.linspace(-1, 1, 4))(batch)
    one = DistributionalDQNLoss(
        q_network(), gamma=0.9, support=torch.linspace(-1, 1, 3), action_space="categorical"
    )
    with pytest.raises(ValueError, match=r"expected log-probabilities .*got \[7, 3\]"):
        one(batch)
    batch["next", "reward"] = torch.zeros(7, ATOMS, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"'reward': expected \[1\] after the batch, got \[5\]"):
        distributional()(batch)


@pytest.mark.parametrize("action", [-1, 3])
def test_an_action_that_the_network_does_not_value_is_refused(action, q_network, q_batch):
    batch = q_batch(trajectories([3, 4], KINDS[:2]))
    batch["action"][2] = action
    for loss in (DQNLoss(q_network(), action_space="categorical"), distributional()):
        loss.action_space = "categorical"
        with pytest.raises(IndexError, match="'action': expected numbers from 0 to 2, got some"):
            loss(batch)


def test_impossible_atoms_with_zero_target_cost_nothing(q_batch):
    batch = q_batch(trajectories([1, 1], EndKind.TERMINATED))
    batch["action"].zero_()
    batch["next", "reward"].fill_(1.0)  # the middle atom, and no other
    certain = torch.tensor([-torch.inf, 0.0, -torch.inf]).double()[:, None]
    weight = torch.ones(1, dtype=torch.float64, requires_grad=True)
    net = TensorDictModule(
        lambda x: certain.expand(len(x), 3, 1) * weight, ["observation"], ["action_value"]
    )
    loss = DistributionalDQNLoss(
        net, gamma=0.9, action_space="categorical", support=torch.tensor([0.0, 1.0, 2.0])
    )
    found = loss(batch)["loss"]
    found.backward()
    assert found == 0


def test_rewards_of_double_precision_are_taken_by_distributions_of_single(q_batch):
    batch = q_batch(trajectories([3, 4], KINDS[:2]))
    loss = distributional()
    wanted = loss(batch)["loss"]
    for key in ("observation", ("next", "observation")):
        batch[key] = batch[key].float()
    single = loss.float()
    torch.testing.assert_close(single(batch)["loss"], wanted.float())
