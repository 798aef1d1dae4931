"""Q-learning, against implementations written from the papers."""

import pytest
import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Categorical
from torch.nn import functional as F

from rl_layout import keys, recurrent_mode
from rl_layout.testing import EndKind, environments, trajectories
from rl_value import (
    A2CLoss,
    DistributionalDQNLoss,
    DQNLoss,
    HardUpdate,
    SoftUpdate,
    ValueEstimators,
)
from rl_value.losses.distributional_dqn import project

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]
ACTIONS, ATOMS = 3, 5


def network():
    return TensorDictModule(
        torch.nn.Linear(2, ACTIONS, dtype=torch.float64), ["observation"], ["action_value"]
    )


def prepared(batch):
    batch = batch.clone()
    shape = batch.batch_size
    batch["action"] = torch.randint(ACTIONS, shape)
    batch["observation"] = batch["observation"].double() / 10
    batch["next", "observation"] = batch["next", "observation"].double() / 10
    batch["next", "reward"] = torch.randn(*shape, 1, dtype=torch.float64)
    return batch


def moved(loss):
    with torch.no_grad():
        for value in loss.target_value_network.parameters():
            value.add_(torch.randn_like(value))


def expected_error(loss, batch, gamma=0.99, double=False):
    """δ of each step, by the equation."""
    q = loss.value_network.module(batch["observation"])
    late = loss.target_value_network.module(batch["next", "observation"])
    choice = loss.value_network.module(batch["next", "observation"]) if double else late
    ahead = late.gather(-1, choice.argmax(-1, keepdim=True)).squeeze(-1)
    alive = ~batch["next", "terminated"].squeeze(-1)
    target = batch["next", "reward"].squeeze(-1) + gamma * alive * ahead
    return (F.one_hot(batch["action"], ACTIONS) * q).sum(-1) - target.detach()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", ["l1", "l2", "smooth_l1"])
@pytest.mark.parametrize("flat", [False, True])
def test_the_loss_equals_the_paper(double, kind, flat):
    made = trajectories([3, 4, 2], KINDS) if flat else environments(2, 5, [3, 4], KINDS)
    batch = prepared(made)
    loss = DQNLoss(network(), loss_function=kind, double_dqn=double, action_space="categorical")
    moved(loss)
    delta = expected_error(loss, batch, double=double)
    value = {
        "l1": delta.abs(),
        "l2": delta**2,
        "smooth_l1": torch.where(delta.abs() < 1, delta**2 / 2, delta.abs() - 0.5),
    }[kind].mean()
    found = loss(batch)
    torch.testing.assert_close(found["loss"], value)
    torch.testing.assert_close(batch["td_error"].squeeze(-1), delta.detach() ** 2)
    parameters = list(loss.value_network.parameters())
    ours, theirs = (torch.autograd.grad(x, parameters) for x in (found["loss"], value))
    torch.testing.assert_close(ours, theirs)


def test_dqn_loss_is_a_mean_of_the_steps_that_count():
    batch = prepared(trajectories([3, 4, 2], KINDS))
    loss = DQNLoss(network(), action_space="categorical")
    delta = expected_error(loss, batch)
    batch[keys.NEXT_MISSING] = torch.tensor([0, 0, 1, 0, 0, 0, 1, 0, 0]).bool()
    batch[keys.MASK] = torch.arange(9) != 7
    counted = torch.tensor([1, 1, 1, 1, 1, 1, 0, 0, 1]).bool()
    real = batch[keys.MASK].unsqueeze(-1)
    batch["observation"] = torch.where(real, batch["observation"], float("nan"))
    found, parameters = loss(batch)["loss"], list(loss.value_network.parameters())
    wanted = (delta[counted] ** 2).mean()
    torch.testing.assert_close(found, wanted)
    ours = torch.autograd.grad(found, parameters)
    theirs = torch.autograd.grad(wanted, parameters, retain_graph=True)
    torch.testing.assert_close(ours, theirs)
    assert not batch["td_error"][~counted].any()


def test_priority_weights_weigh_the_steps_of_the_loss():
    batch = prepared(trajectories([3, 4, 2], KINDS))
    loss = DQNLoss(network(), action_space="categorical")
    delta = expected_error(loss, batch)
    weight = torch.rand(9, dtype=torch.float64)
    batch[keys.MASK] = torch.arange(9) != 7
    real = batch[keys.MASK]
    plain = (delta**2)[real].mean()
    torch.testing.assert_close(loss(batch)["loss"], plain)
    for shape in ((9,), (9, 1)):
        batch["priority_weight"] = weight.view(shape)
        weighed = (weight * delta**2)[real].sum() / weight[real].sum()
        torch.testing.assert_close(loss(batch)["loss"], weighed)
    off = DQNLoss(loss.value_network, action_space="categorical", use_prioritized_weights=False)
    torch.testing.assert_close(off(batch)["loss"], plain)
    on = DQNLoss(loss.value_network, action_space="categorical", use_prioritized_weights=True)
    with pytest.raises(KeyError, match="'priority_weight' is missing"):
        on(batch.exclude("priority_weight"))
    with pytest.raises(ValueError, match=r"expected one weight per step, \[9\]: got \[9, 2\]"):
        loss(batch.set("priority_weight", torch.zeros(9, 2)))


def test_n_step_rows_discount_by_their_steps():
    batch = prepared(trajectories([3, 4, 2], KINDS))
    steps = torch.tensor([3, 2, 1, 4, 3, 2, 1, 2, 1])[:, None]
    ends = steps[:, 0] + torch.arange(9) - 1
    for key in ("observation", "done", "terminated", "truncated"):
        batch["next", key] = batch["next", key][ends]
    batch[keys.STEPS_TO_NEXT_OBS] = steps
    loss = DQNLoss(network(), action_space="categorical")
    moved(loss)
    delta = expected_error(loss, batch, gamma=0.99 ** steps[:, 0])
    torch.testing.assert_close(loss(batch)["loss"], (delta**2).mean())


def test_other_estimators_take_q_as_the_value():
    batch = prepared(trajectories([3], EndKind.CUT))
    loss = DQNLoss(network(), action_space="categorical")
    loss.make_value_estimator(ValueEstimators.TDLambda, gamma=0.9, lmbda=0.5)
    late = loss.target_value_network.module(batch["next", "observation"]).amax(-1)
    reward, target = batch["next", "reward"][:, 0], [0.0] * 3
    target[2] = reward[2] + 0.9 * late[2]
    for t in (1, 0):
        target[t] = reward[t] + 0.9 * (0.5 * late[t] + 0.5 * target[t + 1])
    q = loss.value_network.module(batch["observation"])
    chosen = q.gather(-1, batch["action"][:, None])[:, 0]
    expected = (chosen - torch.stack(target)).square().mean()
    torch.testing.assert_close(loss(batch)["loss"], expected)
    with pytest.raises(NotImplementedError, match="DQNLoss cannot use GAE"):
        loss.make_value_estimator(ValueEstimators.GAE)


def test_steps_outside_of_the_budget_are_left_out():
    batch = prepared(trajectories([3, 4, 2], EndKind.TRUNCATED))
    loss = DQNLoss(network(), action_space="categorical", delay_value=False)
    loss.make_value_estimator("td0", gamma=0.9)
    loss(batch)
    errors = batch["td_error"][:, 0].clone()
    loss.make_value_estimator("td0", gamma=0.9, shifted=True)  # 10 slots of the 12 needed
    torch.testing.assert_close(loss(batch)["loss"].detach(), errors[:7].mean())
    assert batch[keys.SHIFTED_VALID].tolist() == [True] * 7 + [False] * 2
    assert not batch["td_error"][7:].any()
    loss = DQNLoss(loss.value_network, action_space="categorical")
    with pytest.raises(ValueError, match="shifted=True reads values and next values at once"):
        loss.make_value_estimator("td0", gamma=0.9, shifted=True)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("compact", [False, True])
def test_time_may_be_another_dimension(named, compact):
    batch = prepared(environments(2, 5, [3, 4], KINDS))
    batch = batch.exclude(("next", "observation")) if compact else batch
    turned = batch.transpose(0, 1).contiguous()
    turned.names = ["time", None] if named else None
    loss = DQNLoss(network(), action_space="categorical", reduction="none")
    moved(loss)
    loss.make_value_estimator("td_lambda", gamma=0.9)
    expected = loss(batch)["loss"]
    loss.make_value_estimator("td_lambda", gamma=0.9, time_dim=None if named else 0)
    torch.testing.assert_close(loss(turned)["loss"], expected.transpose(0, 1))
    torch.testing.assert_close(turned["td_error"], batch["td_error"].transpose(0, 1))
    if compact:
        assert torch.equal(turned[keys.NEXT_MISSING], batch[keys.NEXT_MISSING].T)


def test_substitutes_of_next_observations_are_counted():
    batch = prepared(trajectories([3, 4, 2], KINDS))
    loss = DQNLoss(network(), action_space="categorical")
    loss.make_value_estimator("td0", gamma=0.99, missing_next="root")
    expected = batch.clone()
    expected["next", "observation"][[6, 8]] = batch["observation"][[6, 8]]
    delta = expected_error(loss, expected)
    compact = batch.exclude(("next", "observation"))
    torch.testing.assert_close(loss(compact)["loss"], (delta**2).mean())
    assert loss.value_estimator.num_substituted == 2


@pytest.mark.parametrize("double", [False, True])
def test_dqn_loss_uses_actions_that_the_network_chose(double, chooser):
    batch = prepared(trajectories([3, 4, 2], KINDS))
    batch["action"] = F.one_hot(batch["action"], ACTIONS)
    batch["allowed"] = torch.tensor([[True, False, True]]).expand(9, 3)
    batch["next", "allowed"] = batch["allowed"]
    net = chooser
    loss = DQNLoss(net, action_space="one_hot", double_dqn=double)
    moved(loss)
    late = loss.target_value_network.module.layer(batch["next", "observation"])
    judge = net.module.layer(batch["next", "observation"]) if double else late
    choice = judge[:, [0, 2]].argmax(-1) * 2
    alive = ~batch["next", "terminated"][:, 0]
    ahead = late[torch.arange(9), choice]
    target = batch["next", "reward"][:, 0] + 0.99 * alive * ahead
    value = (net.module.layer(batch["observation"]) * batch["action"]).sum(-1)
    torch.testing.assert_close(loss(batch)["loss"], (value - target.detach()).square().mean())


def test_a_batch_without_next_observations_leaves_out_what_it_cannot_know():
    batch = prepared(trajectories([3, 4, 2], KINDS))
    loss = DQNLoss(network(), action_space="categorical")
    delta = expected_error(loss, batch)
    counted = torch.tensor([1, 1, 1, 1, 1, 1, 0, 1, 0]).bool()
    compact = batch.exclude(("next", "observation"))
    torch.testing.assert_close(loss(compact)["loss"], (delta[counted] ** 2).mean())
    assert torch.equal(compact[keys.NEXT_MISSING], ~counted)


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
def test_distributions_are_projected_as_in_the_paper(double, flat):
    made = trajectories([3, 4, 2], KINDS) if flat else environments(2, 5, [3, 4], KINDS)
    batch = prepared(made)
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


def test_a_distribution_of_n_step_rows_discounts_by_their_steps():
    batch = prepared(trajectories([3, 4], KINDS[:2]))
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
def test_a_distribution_is_learnt_only_where_its_next_state_is_known(marked):
    batch, loss = prepared(trajectories([3, 4, 2], KINDS)), distributional()
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


def test_a_distribution_of_n_step_rows_is_learnt_where_its_next_state_is_known():
    batch, loss = prepared(trajectories([4], EndKind.CUT)), distributional()
    batch[keys.STEPS_TO_NEXT_OBS] = torch.tensor([[2], [2], [2], [1]])
    loss(batch)
    errors = batch["td_error"].clone()
    batch[keys.NEXT_MISSING] = torch.tensor([False, False, True, False])
    batch["next", "observation"][2] = float("nan")
    torch.testing.assert_close(loss(batch)["loss"].detach(), errors[[0, 1, 3]].mean())


def test_padding_is_no_part_of_the_gradients_of_distributions():
    batch, loss = prepared(trajectories([3, 4], KINDS[:2])), distributional()
    batch[keys.MASK] = torch.arange(7) != 6
    parameters = list(loss.value_network.parameters())
    expected = torch.autograd.grad(loss(batch)["loss"], parameters)
    batch["observation"][6] = float("nan")
    torch.testing.assert_close(torch.autograd.grad(loss(batch)["loss"], parameters), expected)


def test_distributional_loss_ignores_next_states_of_terminated_steps():
    batch, loss = prepared(trajectories([3, 4], KINDS[:2])), distributional()
    expected = loss(batch)["loss"]
    batch["next", "observation"][2] = float("nan")
    torch.testing.assert_close(loss(batch)["loss"], expected)


def test_nan_reward_stays_in_its_row_of_distributions():
    batch, loss = prepared(trajectories([3, 4], KINDS[:2])), distributional(reduction="none")
    expected = loss(batch)["loss"]
    batch["next", "reward"][5] = float("nan")
    batch["next", "reward"][1] = float("inf")
    found = loss(batch)["loss"].flatten().isnan()
    assert found.tolist() == [False] * 5 + [True] + [False]
    others = [0, 2, 3, 4, 6]
    torch.testing.assert_close(loss(batch)["loss"][others], expected[others])


@pytest.mark.parametrize("make", [lambda net: DQNLoss(net, action_space="categorical"), None])
def test_networks_are_called_in_recurrent_mode(make):
    batch, modes = prepared(trajectories([3, 4], KINDS[:2])), []
    loss = distributional(double_dqn=True) if make is None else make(network())
    for net in (loss.value_network, loss.target_value_network):
        net.module.register_forward_pre_hook(lambda *_: modes.append(recurrent_mode()))
    loss(batch)
    assert len(modes) >= 2
    assert all(modes)


def test_a_projection_keeps_the_sum_and_exact_places():
    support = torch.tensor([0.0, 1.0, 2.0])
    found = project(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([[0.2, 0.3, 0.5]]), support)
    torch.testing.assert_close(found, torch.tensor([[0.2, 0.5, 0.3]]))


def test_distributional_loss_refuses_settings_that_it_cannot_have():
    with pytest.raises(NotImplementedError, match="a target of its own"):
        distributional().make_value_estimator()
    with pytest.raises(ValueError, match="support: expected returns"):
        distributional(support=None)
    with pytest.raises(ValueError, match="gamma: expected"):
        DistributionalDQNLoss(network(), gamma=2, action_space="one_hot")


@pytest.mark.parametrize(
    "support", [[0.0, 1.0, 5.0], [2.0, 1.0, 0.0], [1.0, 1.0], [1.0], [0, 1, 2]]
)
def test_a_support_that_is_not_even_is_refused(support):
    with pytest.raises(ValueError, match=r"support: expected returns .*, floats evenly spaced"):
        distributional(support=torch.tensor(support))


def test_distributions_of_another_shape_are_refused():
    batch = prepared(trajectories([3, 4]))
    with pytest.raises(ValueError, match=r"expected log-prob.* \[7, 4, 'n'\].*got \[7, 5, 3\]"):
        distributional(support=torch.linspace(-1, 1, 4))(batch)
    one = DistributionalDQNLoss(
        network(), gamma=0.9, support=torch.linspace(-1, 1, 3), action_space="categorical"
    )
    with pytest.raises(ValueError, match=r"expected log-probabilities .*got \[7, 3\]"):
        one(batch)
    batch["next", "reward"] = torch.zeros(7, ATOMS, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"'reward': expected \[1\] after the batch, got \[5\]"):
        distributional()(batch)


def test_dqn_loss_refuses_wrong_arguments():
    with pytest.raises(ValueError, match="action_space: expected one_hot or categorical, got noth"):
        DQNLoss(network())
    with pytest.raises(TypeError, match=r"value_network: .*got Linear. Wrap it"):
        DQNLoss(torch.nn.Linear(2, 3), action_space="one_hot")
    with pytest.raises(ValueError, match="it needs delay_value=True"):
        DQNLoss(network(), action_space="one_hot", delay_value=False, double_dqn=True)
    with pytest.raises(ValueError, match="loss_function: expected 'l1', 'l2' or"):
        DQNLoss(network(), action_space="one_hot", loss_function="l3")
    with pytest.raises(TypeError, match=r"Use make_value_estimator\(gamma="):
        DQNLoss(network(), action_space="one_hot", gamma=0.9)
    loss = DQNLoss(network(), action_space="one_hot")
    with pytest.raises(ValueError, match=r"action: expected \[3, 3\] as one_hot, got \[3\]"):
        loss(prepared(trajectories([3])))
    batch, loss = prepared(trajectories([3])), DQNLoss(network(), action_space="categorical")
    with pytest.raises(TypeError, match=r"expected integers as categorical, got torch.float64"):
        loss(batch.set("action", torch.full((3,), 0.5, dtype=torch.float64)))


def test_the_action_space_is_read_from_the_network():
    net = network()
    net.action_space = "one_hot"
    assert DQNLoss(net).action_space == "one_hot"
    assert DQNLoss(net, action_space="categorical").action_space == "categorical"


def test_compiled_q_learning_gives_the_same():
    loss = DQNLoss(network(), action_space="categorical")
    batch = prepared(trajectories([3, 4, 2], KINDS))
    compiled = torch.compile(loss, backend="eager")
    torch.testing.assert_close(compiled(batch.clone())["loss"], loss(batch)["loss"])


def test_compiled_q_learning_takes_note_of_weights_that_were_missing_before():
    loss = DQNLoss(network(), action_space="categorical")
    batch = prepared(trajectories([3, 4, 2], KINDS))
    compiled = torch.compile(loss, backend="eager")
    compiled(batch.clone())
    batch["priority_weight"] = torch.rand(9, dtype=torch.float64)
    torch.testing.assert_close(compiled(batch.clone())["loss"], loss(batch)["loss"])


@pytest.mark.parametrize("settings", [{"tau": 0.25}, {"eps": 0.75}])
def test_a_soft_update_moves_by_its_share(settings):
    net = TensorDictModule(
        torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)),
        ["observation"],
        ["action_value"],
    )
    loss = DQNLoss(net, action_space="categorical")
    update = SoftUpdate(loss, **settings)
    with torch.no_grad():
        net.module[0].weight.add_(1)
    net.module[1].num_batches_tracked.fill_(7)
    update.step()
    late = loss.target_value_network.module
    torch.testing.assert_close(net.module[0].weight - late[0].weight, torch.full((3, 2), 0.75))
    assert late[1].num_batches_tracked == 7
    update.init_()
    assert torch.equal(net.module[0].weight, late[0].weight)


def test_a_hard_update_waits_for_its_turn():
    loss = DQNLoss(network(), action_space="categorical")
    update = HardUpdate(loss, value_network_update_interval=3)
    moved(loss)
    weights = loss.value_network.module.weight, loss.target_value_network.module.weight
    for equal in (False, False, True):
        update.step()
        assert torch.equal(*weights) == equal
    moved(loss)
    update.step()
    assert not torch.equal(*weights)


def test_updates_refuse_what_they_cannot_do():
    loss = DQNLoss(network(), action_space="categorical")
    with pytest.raises(ValueError, match="pass one of them"):
        SoftUpdate(loss, eps=0.9, tau=0.1)
    with pytest.raises(ValueError, match="expected eps and tau in"):
        SoftUpdate(loss, tau=1.5)
    with pytest.raises(ValueError, match=r"expected eps and tau in .* got 'slow'"):
        SoftUpdate(loss, tau="slow")
    with pytest.raises(ValueError, match="expected at least 1"):
        HardUpdate(loss, value_network_update_interval=0)
    with pytest.raises(TypeError, match="expected a whole number"):
        HardUpdate(loss, value_network_update_interval=2.5)
    choice = ProbabilisticTensorDictModule(
        {"logits": "action_value"}, ["action"], distribution_class=Categorical
    )
    actor = ProbabilisticTensorDictSequential(network(), choice)
    with pytest.raises(RuntimeError, match="A2CLoss has no target network"):
        SoftUpdate(A2CLoss(actor))


def test_target_parameters_are_saved_and_do_not_learn():
    loss = DQNLoss(network(), action_space="categorical")
    moved(loss)
    again = DQNLoss(network(), action_space="categorical")
    again.load_state_dict(loss.state_dict())
    batch = prepared(trajectories([3, 4, 2], KINDS))
    torch.testing.assert_close(again(batch.clone())["loss"], loss(batch)["loss"])
    learning = [name for name, value in loss.named_parameters() if value.requires_grad]
    assert learning == ["value_network.module.weight", "value_network.module.bias"]
    shared = loss.target_value_network_params["module", "weight"]
    assert shared.data_ptr() == loss.target_value_network.module.weight.data_ptr()


@pytest.mark.parametrize("action", [-1, 3])
def test_an_action_that_the_network_does_not_value_is_refused(action):
    batch = prepared(trajectories([3, 4], KINDS[:2]))
    batch["action"][2] = action
    for loss in (DQNLoss(network(), action_space="categorical"), distributional()):
        loss.action_space = "categorical"
        with pytest.raises(IndexError, match="'action': expected numbers from 0 to 2, got some"):
            loss(batch)


def test_impossible_atoms_with_zero_target_cost_nothing():
    batch = prepared(trajectories([1, 1], EndKind.TERMINATED))
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


def test_rewards_of_double_precision_are_taken_by_distributions_of_single():
    batch = prepared(trajectories([3, 4], KINDS[:2]))
    loss = distributional()
    wanted = loss(batch)["loss"]
    for key in ("observation", ("next", "observation")):
        batch[key] = batch[key].float()
    single = loss.float()
    torch.testing.assert_close(single(batch)["loss"], wanted.float())
