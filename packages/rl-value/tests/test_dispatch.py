"""Losses and estimators called by arguments: what they take, what they give, in which order.

The lists are those of TorchRL 0.14, written down.
"""

from copy import deepcopy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Categorical

from rl_layout.testing import EndKind, trajectories
from rl_value import (
    GAE,
    A2CLoss,
    ClipPPOLoss,
    DistributionalDQNLoss,
    DQNLoss,
    KLPENPPOLoss,
    PPOLoss,
    ReinforceLoss,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
    VTrace,
)

FLAGS = [("next", "reward"), ("next", "done"), ("next", "terminated")]
OBSERVED = ["observation", ("next", "observation")]
STEP = {"action", *FLAGS, *OBSERVED}
ENTROPY = ["entropy", "loss_entropy"]
RATIOS = ["ESS", "kl_approx", "max_ratio", "mean_ratio"]


def actor():
    return ProbabilisticTensorDictSequential(
        TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical),
    )


def critic(size=2):
    return TensorDictModule(torch.nn.Linear(size, 1), ["observation"], ["state_value"])


def q_network(*last):
    net = torch.nn.Sequential(torch.nn.Linear(2, 15 if last else 3), *last)
    return TensorDictModule(net, ["observation"], ["action_value"])


def dqn(**settings):
    return DQNLoss(q_network(), action_space="categorical", **settings)


def distributional():
    net = q_network(torch.nn.Unflatten(-1, (5, 3)), torch.nn.LogSoftmax(-2))
    support = torch.linspace(-1, 1, 5)
    return DistributionalDQNLoss(net, gamma=0.9, support=support, action_space="categorical")


def batch_of():
    batch = trajectories([3, 2], EndKind.TRUNCATED)
    batch["action"] = batch["action"].squeeze(-1) % 3
    batch["sample_log_prob"] = torch.full((5,), 1 / 3).log()
    batch["logits"] = torch.zeros(5, 3)
    batch["state_value"] = torch.zeros(5, 1)
    return batch


def name_of(key):
    return key if isinstance(key, str) else "_".join(key)


POLICY = [
    (PPOLoss, {}, ["loss_objective", *ENTROPY, "loss_critic"]),
    (PPOLoss, {"entropy_bonus": False}, ["loss_objective", "loss_critic"]),
    (PPOLoss, {"critic_coeff": None}, ["loss_objective", *ENTROPY]),
    (
        PPOLoss,
        {"clip_value": 0.1},
        ["loss_objective", *ENTROPY, "loss_critic", "value_clip_fraction"],
    ),
    (ClipPPOLoss, {}, ["loss_objective", "clip_fraction", *ENTROPY, "loss_critic", *RATIOS]),
    (
        ClipPPOLoss,
        {"clip_value": True, "entropy_bonus": False},
        ["loss_objective", "clip_fraction", "loss_critic", "value_clip_fraction", *RATIOS],
    ),
    (KLPENPPOLoss, {}, ["loss_objective", "kl", *ENTROPY, "loss_critic"]),
    (A2CLoss, {}, ["loss_objective", "loss_critic", *ENTROPY]),
    (A2CLoss, {"entropy_bonus": False}, ["loss_objective", "loss_critic"]),
    (A2CLoss, {"critic_coeff": None}, ["loss_objective", *ENTROPY]),
    (A2CLoss, {"clip_value": 0.1}, ["loss_objective", "loss_critic", *ENTROPY]),
    (ReinforceLoss, {}, ["loss_actor", "loss_value"]),
    (ReinforceLoss, {"clip_value": 0.1}, ["loss_actor", "loss_value"]),
]
READ = {
    PPOLoss: {*STEP, "sample_log_prob"},
    ClipPPOLoss: {*STEP, "sample_log_prob"},
    KLPENPPOLoss: {*STEP, "sample_log_prob", "logits"},
    A2CLoss: STEP,
    ReinforceLoss: STEP,
}


@pytest.mark.parametrize(("kind", "settings", "outputs"), POLICY)
def test_a_loss_of_an_actor_gives_what_the_peer_gives(kind, settings, outputs):
    loss, batch = kind(actor(), critic(), **settings), batch_of()
    assert loss.out_keys == outputs
    assert set(loss.in_keys) == READ[kind]
    given = {name_of(key): batch[key] for key in loss.in_keys}
    if "clip_value" in settings:
        given["state_value"] = batch["state_value"]
    found, expected = deepcopy(loss)(**given), loss(batch.clone())  # β moves
    assert len(found) == len(outputs)
    for value, key in zip(found, outputs, strict=True):
        torch.testing.assert_close(value, expected[key])


@pytest.mark.parametrize("make", [dqn, distributional])
def test_a_loss_of_action_values_gives_one_tensor(make):
    loss, batch = make(), batch_of()
    assert loss.out_keys == ["loss"]
    assert loss.in_keys == ["action", *FLAGS, *OBSERVED]
    found = loss(*(batch[key] for key in loss.in_keys))
    torch.testing.assert_close(found, loss(batch)["loss"])


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (GAE, {"lmbda": 0.9}),
        (TD0Estimator, {}),
        (TD1Estimator, {}),
        (TDLambdaEstimator, {"lmbda": 0.9}),
        (VTrace, {"actor_network": actor()}),
    ],
)
def test_an_estimator_gives_advantage_and_target(kind, settings):
    estimator = kind(gamma=0.9, value_network=critic(), **settings)
    own = ["sample_log_prob", "action"] if kind is VTrace else []
    assert estimator.in_keys == ["observation", *FLAGS, ("next", "observation"), *own]
    assert estimator.out_keys == ["advantage", "value_target"]
    batch = batch_of()
    advantage, target = estimator(*(batch[key] for key in estimator.in_keys))
    expected = estimator(batch.exclude(("collector", "traj_ids"), "is_init"))
    torch.testing.assert_close(advantage, expected["advantage"])
    torch.testing.assert_close(target, expected["value_target"])


def test_arguments_of_one_column_lie_along_time():
    done = torch.tensor([[False], [False], [True], [False]])
    x = torch.arange(4.0)[:, None]
    estimator = GAE(gamma=0.9, lmbda=0.9, value_network=critic(1))
    batch = TensorDict({"observation": x, ("next", "observation"): x + 1}, [4])
    batch["next", "reward"] = torch.ones(4, 1)
    batch["next", "done"] = batch["next", "terminated"] = done
    found, _ = estimator(*(batch[key] for key in estimator.in_keys))
    torch.testing.assert_close(found, estimator(batch)["advantage"])


def test_advantages_and_markers_may_be_passed_by_name():
    batch, loss = batch_of(), A2CLoss(actor(), critic())
    batch["advantage"], batch["value_target"] = torch.randn(2, 5, 1)
    batch["collector", "mask"] = torch.tensor([True, True, False, True, True])
    found = loss(
        observation=batch["observation"],
        action=batch["action"],
        advantage=batch["advantage"],
        value_target=batch["value_target"],
        collector_mask=batch["collector", "mask"],
    )
    torch.testing.assert_close(found[0], loss(batch)["loss_objective"])


def test_selected_outputs_come_alone_and_in_their_order():
    batch, loss = batch_of(), ClipPPOLoss(actor(), critic())
    GAE(gamma=0.9, lmbda=0.9, value_network=critic())(batch)
    whole = loss(batch)
    assert loss.select_out_keys("loss_critic", "loss_objective") is loss
    assert loss.out_keys == ["loss_critic", "loss_objective"]
    assert list(loss(batch).keys()) == ["loss_critic", "loss_objective"]
    short = batch.select("observation", "action", "sample_log_prob", "advantage", "value_target")
    assert list(loss(short).keys()) == ["loss_critic", "loss_objective"]
    given = {name_of(key): batch[key] for key in loss.in_keys}
    assert len(loss(**given)) == 2
    loss.reset_out_keys()
    assert set(loss(batch).keys()) == set(whole.keys())
    with pytest.raises(ValueError, match=r"'loss_value' is no output of ClipPPOLoss: it gives"):
        loss.select_out_keys("loss_value")


def test_an_estimator_writes_what_was_selected_and_takes_nothing_away():
    batch = batch_of()
    estimator = TD0Estimator(gamma=0.9, value_network=critic()).select_out_keys("value_target")
    before = set(batch.keys(include_nested=True))
    after = set(estimator(batch).keys(include_nested=True))
    assert after - before == {"value_target"}
    assert before <= after


@pytest.mark.parametrize(
    ("args", "given", "message"),
    [
        ((), {}, r"expected a tensordict, or tensors as keywords \(action, .*\): got nothing"),
        ((), {"acton": torch.zeros(5)}, r"unexpected argument 'acton': DQNLoss takes action, "),
        ((torch.zeros(5),), {"action": torch.zeros(5)}, r"'action' is given twice"),
        ((torch.zeros(5),) * 7, {}, r"or at most 6 tensors .*: got 7 arguments"),
        (({"action": 1},), {}, r"action: expected a tensor, got dict\. Pass a tensordict"),
    ],
)
def test_arguments_that_cannot_be_are_refused(args, given, message):
    with pytest.raises(TypeError, match=message):
        dqn()(*args, **given)
