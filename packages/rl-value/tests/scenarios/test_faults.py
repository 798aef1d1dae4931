"""Wrong data and settings are refused by the public call, with their names."""

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
    DQNLoss,
    KLPENPPOLoss,
    PPOLoss,
    gae,
    linear_scan,
    reward_to_go,
)


def actor():
    return ProbabilisticTensorDictSequential(
        TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical),
    )


def critic():
    return TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])


def rows():
    batch = trajectories([3, 2], EndKind.TRUNCATED)
    batch["action"] = batch["action"].squeeze(-1) % 3
    batch["sample_log_prob"] = torch.full((5,), 1 / 3).log()
    batch["logits"] = torch.zeros(5, 3)
    batch["advantage"], batch["value_target"] = torch.randn(2, 5, 1)
    return batch


GROUP = TensorDict({"a": torch.zeros(5, 1)}, [5])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("advantage", torch.zeros(5, 1, dtype=torch.bool), r"'advantage': expected floating point"),
        ("value_target", torch.zeros(5, 1).cfloat(), r"'value_target': expected floating point"),
        ("value_target", GROUP, r"'value_target': expected a tensor of floats, got TensorDict"),
        ("sample_log_prob", GROUP, r"'sample_log_prob': expected a tensor of floats"),
        ("sample_log_prob", torch.zeros(5).long(), r"'sample_log_prob': .*got torch.int64"),
        ("action", GROUP, r"'action': expected a tensor of actions, got TensorDict"),
        ("logits", torch.zeros(5, 3).bool(), r"'logits': expected floating point"),
    ],
)
def test_entries_of_another_kind_are_named(key, value, message):
    batch = rows().set(key, value)
    with pytest.raises(TypeError, match=message):
        KLPENPPOLoss(actor(), critic())(batch)


def test_a_marker_that_is_no_tensor_is_named():
    batch = rows().exclude("advantage").set_non_tensor("is_init", "first")
    with pytest.raises(TypeError, match=r"'is_init': expected a tensor, got NonTensorData"):
        GAE(gamma=0.9, lmbda=0.9, value_network=critic())(batch)


def test_weights_of_another_kind_are_named():
    net = TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["action_value"])
    batch = rows().set("priority_weight", torch.ones(5, dtype=torch.bool))
    with pytest.raises(TypeError, match="'priority_weight': expected floating point"):
        DQNLoss(net, action_space="categorical")(batch)


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("call", [A2CLoss, GAE])
def test_error_of_a_network_names_the_network(call, hooked):
    batch, net = rows(), critic()
    batch["observation"] = batch["next", "observation"] = torch.zeros(5, 7)
    if hooked:  # a network that is called as it is
        net.register_forward_hook(lambda *_: None)
    made = A2CLoss(actor(), net) if call is A2CLoss else GAE(gamma=1, lmbda=1, value_network=net)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        made(batch)
    (note,) = [each for each in caught.value.__notes__ if " was given " in each]
    assert note.startswith("the network that writes ['")
    assert "was given 'observation' float32 [5, 7]. Steps are its rows" in note


def test_logits_and_actions_that_do_not_fit_say_so():
    batch, loss = rows(), A2CLoss(actor(), critic())
    batch["action"] = torch.zeros(5, 2, dtype=torch.int64)
    # torch says it by its check of values, or, where a process has switched that off, later
    with pytest.raises((ValueError, RuntimeError), match=r"broadcast|must match") as caught:
        loss(batch)
    (note,) = caught.value.__notes__
    assert note.startswith("'action': [5, 2] torch.int64; the actor gives [5] by Categorical")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, d: gae(x, x, x, d, 1, gamma=1, lmbda=1), "done: expected a tensor, got int"),
        (lambda x, d: gae(x, x, [1], d, d, gamma=1, lmbda=1), "next_value: expected a tensor"),
        (
            lambda x, d: reward_to_go(x, d, gamma=1, time_dim=None),
            "time_dim: expected a whole number",
        ),
        (lambda x, d: reward_to_go(x, d, gamma=d), "gamma: expected numbers in .*got torch.bool"),
        (lambda x, d: reward_to_go(x.to_sparse(), d, gamma=1), "reward: expected a dense tensor"),
        (lambda x, d: linear_scan(0.5, x), "a: expected a tensor, got float"),
        (lambda x, d: linear_scan(x, x, 1), "cut: expected a tensor, got int"),
    ],
)
def test_functions_of_arrays_name_what_is_no_array(call, message):
    with pytest.raises(TypeError, match=message):
        call(torch.zeros(4, 1), torch.zeros(4, 1, dtype=torch.bool))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PPOLoss(actor(), critic(), normalize_advantage_exclude_dims=1), "numbers of dim"),
        (lambda: KLPENPPOLoss(actor(), critic(), dtarg="small"), "dtarg: expected a number"),
        (lambda: ClipPPOLoss(actor(), critic()).counted([1]), "a tensordict of steps, got list"),
    ],
)
def test_settings_of_another_kind_are_named(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_parameters_are_a_tensordict():
    estimator = GAE(gamma=0.9, lmbda=0.9, value_network=critic())
    with pytest.raises(TypeError, match=r"params: expected a tensordict.*got list.*from_module"):
        estimator(rows(), params=[1])
    with pytest.raises(TypeError, match="expected a tensordict of steps, got set"):
        estimator.value_estimate(set())
