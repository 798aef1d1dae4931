"""Q-learning, against implementations written from the papers."""

import pytest
import torch
from torch.nn import functional as F

from rl_layout import keys
from rl_layout.testing import EndKind, environments, trajectories
from rl_value import (
    DQNLoss,
    ValueEstimators,
)

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]

ACTIONS, ATOMS = 3, 5


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
def test_the_loss_equals_the_paper(double, kind, flat, moved, q_network, q_batch):
    made = trajectories([3, 4, 2], KINDS) if flat else environments(2, 5, [3, 4], KINDS)
    batch = q_batch(made)
    loss = DQNLoss(q_network(), loss_function=kind, double_dqn=double, action_space="categorical")
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


def test_dqn_loss_is_a_mean_of_the_steps_that_count(q_network, q_batch):
    batch = q_batch(trajectories([3, 4, 2], KINDS))
    loss = DQNLoss(q_network(), action_space="categorical")
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


def test_priority_weights_weigh_the_steps_of_the_loss(q_network, q_batch):
    batch = q_batch(trajectories([3, 4, 2], KINDS))
    loss = DQNLoss(q_network(), action_space="categorical")
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
        steps = DQNLoss(loss.value_network, action_space="categorical", reduction="none")
        steps.load_state_dict(loss.state_dict())
        each = weight.where(real, 0) * delta**2
        torch.testing.assert_close(steps(batch)["loss"].squeeze(-1), each)
    off = DQNLoss(loss.value_network, action_space="categorical", use_prioritized_weights=False)
    torch.testing.assert_close(off(batch)["loss"], plain)
    on = DQNLoss(loss.value_network, action_space="categorical", use_prioritized_weights=True)
    with pytest.raises(KeyError, match="'priority_weight' is missing"):
        on(batch.exclude("priority_weight"))
    with pytest.raises(ValueError, match=r"expected one weight per step, \[9\]: got \[9, 2\]"):
        loss(batch.set("priority_weight", torch.zeros(9, 2)))


def test_done_alone_is_a_termination_and_one_other_flag_tells_them_apart(q_network, q_batch):
    batch = q_batch(trajectories([3, 4, 2], KINDS))
    loss = DQNLoss(q_network(), action_space="categorical")
    whole = loss(batch)["loss"]
    for flag in ("terminated", "truncated"):
        torch.testing.assert_close(loss(batch.exclude(("next", flag)))["loss"], whole)
    alone = batch.exclude(("next", "terminated"), ("next", "truncated"))
    batch["next", "terminated"] = batch["next", "done"]
    assert not torch.equal(loss(batch)["loss"], whole)
    torch.testing.assert_close(loss(alone)["loss"], loss(batch)["loss"])


def test_n_step_rows_discount_by_their_steps(moved, q_network, q_batch):
    batch = q_batch(trajectories([3, 4, 2], KINDS))
    steps = torch.tensor([3, 2, 1, 4, 3, 2, 1, 2, 1])[:, None]
    ends = steps[:, 0] + torch.arange(9) - 1
    for key in ("observation", "done", "terminated", "truncated"):
        batch["next", key] = batch["next", key][ends]
    batch[keys.STEPS_TO_NEXT_OBS] = steps
    loss = DQNLoss(q_network(), action_space="categorical")
    moved(loss)
    delta = expected_error(loss, batch, gamma=0.99 ** steps[:, 0])
    torch.testing.assert_close(loss(batch)["loss"], (delta**2).mean())


@pytest.mark.parametrize("shape", [(3, 2), (3, 1, 1)])
def test_numbers_of_actions_of_another_shape_are_refused(q_network, q_batch, shape):
    batch, loss = q_batch(trajectories([3])), DQNLoss(q_network(), action_space="categorical")
    batch["action"] = torch.zeros(shape, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"action: expected \[3\] as categorical, got \[3, "):
        loss(batch)


def test_other_estimators_take_q_as_the_value(q_network, q_batch):
    batch = q_batch(trajectories([3], EndKind.CUT))
    loss = DQNLoss(q_network(), action_space="categorical")
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


def test_steps_outside_of_the_budget_are_left_out(q_network, q_batch):
    batch = q_batch(trajectories([3, 4, 2], EndKind.TRUNCATED))
    loss = DQNLoss(q_network(), action_space="categorical", delay_value=False)
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
def test_time_may_be_another_dimension(named, compact, moved, q_network, q_batch):
    batch = q_batch(environments(2, 5, [3, 4], KINDS))
    batch = batch.exclude(("next", "observation")) if compact else batch
    turned = batch.transpose(0, 1).contiguous()
    turned.names = ["time", None] if named else None
    loss = DQNLoss(q_network(), action_space="categorical", reduction="none")
    moved(loss)
    loss.make_value_estimator("td_lambda", gamma=0.9)
    expected = loss(batch)["loss"]
    loss.make_value_estimator("td_lambda", gamma=0.9, time_dim=None if named else 0)
    torch.testing.assert_close(loss(turned)["loss"], expected.transpose(0, 1))
    torch.testing.assert_close(turned["td_error"], batch["td_error"].transpose(0, 1))
    if compact:
        assert torch.equal(turned[keys.NEXT_MISSING], batch[keys.NEXT_MISSING].T)


def test_substitutes_of_next_observations_are_counted(q_network, q_batch):
    batch = q_batch(trajectories([3, 4, 2], KINDS))
    loss = DQNLoss(q_network(), action_space="categorical")
    loss.make_value_estimator("td0", gamma=0.99, missing_next="root")
    expected = batch.clone()
    expected["next", "observation"][[6, 8]] = batch["observation"][[6, 8]]
    delta = expected_error(loss, expected)
    compact = batch.exclude(("next", "observation"))
    torch.testing.assert_close(loss(compact)["loss"], (delta**2).mean())
    assert loss.value_estimator.num_substituted == 2


@pytest.mark.parametrize("double", [False, True])
def test_dqn_loss_uses_actions_that_the_network_chose(double, chooser, moved, q_batch):
    batch = q_batch(trajectories([3, 4, 2], KINDS))
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


def test_a_batch_without_next_observations_leaves_out_what_it_cannot_know(q_network, q_batch):
    batch = q_batch(trajectories([3, 4, 2], KINDS))
    loss = DQNLoss(q_network(), action_space="categorical")
    delta = expected_error(loss, batch)
    counted = torch.tensor([1, 1, 1, 1, 1, 1, 0, 1, 0]).bool()
    compact = batch.exclude(("next", "observation"))
    torch.testing.assert_close(loss(compact)["loss"], (delta[counted] ** 2).mean())
    assert torch.equal(compact[keys.NEXT_MISSING], ~counted)


def test_dqn_loss_refuses_wrong_arguments(q_network, q_batch):
    with pytest.raises(ValueError, match="action_space: expected one_hot or categorical, got noth"):
        DQNLoss(q_network())
    with pytest.raises(TypeError, match=r"value_network: .*got Linear. Wrap it"):
        DQNLoss(torch.nn.Linear(2, 3), action_space="one_hot")
    with pytest.raises(ValueError, match="it needs delay_value=True"):
        DQNLoss(q_network(), action_space="one_hot", delay_value=False, double_dqn=True)
    with pytest.raises(ValueError, match="loss_function: expected 'l1', 'l2' or"):
        DQNLoss(q_network(), action_space="one_hot", loss_function="l3")
    with pytest.raises(TypeError, match=r"Use make_value_estimator\(gamma="):
        DQNLoss(q_network(), action_space="one_hot", gamma=0.9)
    loss = DQNLoss(q_network(), action_space="one_hot")
    with pytest.raises(ValueError, match=r"action: expected \[3, 3\] as one_hot, got \[3\]"):
        loss(q_batch(trajectories([3])))
    batch, loss = q_batch(trajectories([3])), DQNLoss(q_network(), action_space="categorical")
    with pytest.raises(TypeError, match=r"expected integers as categorical, got torch.float64"):
        loss(batch.set("action", torch.full((3,), 0.5, dtype=torch.float64)))


def test_the_action_space_is_read_from_the_network(q_network):
    net = q_network()
    net.action_space = "one_hot"
    assert DQNLoss(net).action_space == "one_hot"
    assert DQNLoss(net, action_space="categorical").action_space == "categorical"


def test_compiled_q_learning_gives_the_same(q_network, q_batch):
    loss = DQNLoss(q_network(), action_space="categorical")
    batch = q_batch(trajectories([3, 4, 2], KINDS))
    compiled = torch.compile(loss, backend="eager")
    torch.testing.assert_close(compiled(batch.clone())["loss"], loss(batch)["loss"])


def test_compiled_q_learning_takes_note_of_weights_that_were_missing_before(q_network, q_batch):
    loss = DQNLoss(q_network(), action_space="categorical")
    batch = q_batch(trajectories([3, 4, 2], KINDS))
    compiled = torch.compile(loss, backend="eager")
    compiled(batch.clone())
    batch["priority_weight"] = torch.rand(9, dtype=torch.float64)
    torch.testing.assert_close(compiled(batch.clone())["loss"], loss(batch)["loss"])
