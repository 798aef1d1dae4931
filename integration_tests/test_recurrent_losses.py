"""Every loss with targets of next states, of recurrent networks on flat slices, and burn-in."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import pytest
import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn

from rl_layout import Segments, keys
from rl_layout.testing import EndKind, trajectories
from rl_policies import MLP, IndependentNormal, OneHotCategorical, ProbabilisticActor, ValueOperator
from rl_recurrent import GRUModule
from rl_specs import Bounded, OneHot
from rl_transforms import BurnIn
from rl_value import (
    CQLLoss,
    CrossQLoss,
    DDPGLoss,
    DiscreteCQLLoss,
    DiscreteSACLoss,
    DQNLoss,
    IQLLoss,
    REDQLoss,
    SACLoss,
    TD3BCLoss,
    TD3Loss,
)
from rl_value.testing import check_bootstrapped_loss

HIDDEN, CHOICES = 5, 3
KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]
SPEC, NARROW = Bounded(-1, 1, (1,)), Bounded(-1e-9, 1e-9, (1,))


class Still(IndependentNormal):
    """A distribution whose samples are its mean, so that nothing depends on chance."""

    def rsample(self, sample_shape=()):
        """The mean."""
        return self.loc.expand(*sample_shape, *self.loc.shape)


def gru(name):
    read = ["observation", f"{name}_state", "is_init"]
    return GRUModule(
        2, HIDDEN, in_keys=read, out_keys=[f"{name}_features", ("next", f"{name}_state")]
    )


def headed(name, net, *out_keys):
    head = TensorDictModule(net, [f"{name}_features"], list(out_keys))
    return TensorDictSequential(gru(name), head)


def actor():
    body = nn.Sequential(MLP(HIDDEN, 2, num_cells=[7]), NormalParamExtractor())
    return ProbabilisticActor(
        headed("actor", body, "loc", "scale"), ["loc", "scale"], distribution_class=Still
    )


def deterministic():
    body = nn.Sequential(MLP(HIDDEN, 1, num_cells=[7]), nn.Tanh())
    return headed("actor", body, "action")


def chooser():
    return ProbabilisticActor(
        headed("actor", nn.Linear(HIDDEN, CHOICES), "logits"),
        ["logits"],
        spec=OneHot(CHOICES),
        distribution_class=OneHotCategorical,
    )


def critics(num=2):
    head = ValueOperator(MLP(HIDDEN + 1, 1, num_cells=[7]), ["critic_features", "action"])
    return TensorDictSequential(gru("critic"), head.ensemble(num) if num > 1 else head)


def values():
    return headed("critic", nn.Linear(HIDDEN, CHOICES), "action_value")


def choosing_critics():
    head = ValueOperator(nn.Linear(HIDDEN, CHOICES), ["critic_features"], ["action_value"])
    return TensorDictSequential(gru("critic"), head.ensemble(2))


def state_critic():
    return headed("value", nn.Linear(HIDDEN, 1), "state_value")


SPACE, NARROW_SPEC = {"action_space": "one_hot"}, {"action_spec": NARROW, "check_finite": False}
MAKERS = {
    "SACLoss": lambda: SACLoss(actor(), critics(), action_spec=SPEC),
    "REDQLoss": lambda: REDQLoss(actor(), critics(3), sub_sample_len=3, action_spec=SPEC),
    "CQLLoss": lambda: CQLLoss(actor(), critics(), num_random=2, **NARROW_SPEC),
    "IQLLoss": lambda: IQLLoss(actor(), critics(), state_critic(), action_spec=SPEC),
    "TD3Loss": lambda: TD3Loss(deterministic(), critics(), policy_noise=0.0, action_spec=SPEC),
    "TD3BCLoss": lambda: TD3BCLoss(deterministic(), critics(), policy_noise=0.0, action_spec=SPEC),
    "DDPGLoss": lambda: DDPGLoss(deterministic(), critics(1), action_spec=SPEC),
    "DiscreteSACLoss": lambda: DiscreteSACLoss(
        chooser(), choosing_critics(), num_actions=CHOICES, **SPACE
    ),
    "DiscreteCQLLoss": lambda: DiscreteCQLLoss(values(), **SPACE),
    "DQNLoss": lambda: DQNLoss(values(), **SPACE),
    "DQNLoss, double": lambda: DQNLoss(values(), double_dqn=True, **SPACE),
}
OF_CHOICES = ("Discrete", "DQN")


def made(name):
    torch.manual_seed(0)
    loss = MAKERS[name]().double()
    with torch.no_grad():
        for key, value in loss.named_parameters():
            if key.startswith("target_"):
                value.add_(torch.randn_like(value) / 3)
    return loss


def rows(name, lengths=(3, 4, 2)):
    torch.manual_seed(1)
    batch, size = trajectories(list(lengths), KINDS), sum(lengths)
    for key in ("observation", ("next", "observation")):
        batch[key] = batch[key].double() / 10
    batch["action"] = torch.rand(size, 1, dtype=torch.float64)
    if name.startswith(OF_CHOICES):
        batch["action"] = nn.functional.one_hot(torch.randint(CHOICES, (size,)), CHOICES)
    batch["next", "reward"] = torch.randn(size, 1, dtype=torch.float64)
    for part in ("actor", "critic", "value"):
        batch[f"{part}_state"] = torch.randn(size, 1, HIDDEN, dtype=torch.float64)
    return batch


@pytest.mark.parametrize("name", MAKERS)
def test_losses_of_recurrent_networks_keep_the_promises_of_losses(name):
    check_bootstrapped_loss(lambda: made(name), rows(name))


@pytest.mark.parametrize("name", MAKERS)
def test_slices_that_were_burnt_in_learn_from_the_rows_that_are_left(name):
    loss, batch = made(name), rows(name, (6, 7, 5))
    batch[keys.TRAJ_STEP] += 3  # slices from the middle of episodes
    recurrent = {one.in_keys[1]: one for one in loss.modules() if isinstance(one, GRUModule)}
    left = BurnIn(list(recurrent.values()), 2)(batch.clone())
    assert len(left) == 18 - 6
    found = loss(left)
    sum(value for key, value in found.items() if key.startswith("loss")).backward()
    weights = [one for one in loss.parameters() if one.requires_grad]
    assert all(one.grad is not None and one.grad.isfinite().all() for one in weights)
    assert left["td_error"].shape == (12, 1)
    moved = batch.clone()
    before = Segments.of(batch).positions < 2
    moved["next", "reward"][before] += 10  # rows burnt in have no loss
    torch.testing.assert_close(loss(BurnIn(list(recurrent.values()), 2)(moved)), found)
    moved["observation"][before] += 1  # and make the state that the others begin with
    again = loss(BurnIn(list(recurrent.values()), 2)(moved))
    pairs = [(again[key], value) for key, value in found.items() if key.startswith("loss")]
    assert not all(torch.equal(one, other) for one, other in pairs)


def test_losses_that_read_both_states_in_one_call_refuse_recurrent_networks():
    with pytest.raises(ValueError, match=r"takes no networks that keep a state.*Use SACLoss"):
        CrossQLoss(actor(), critics(), action_spec=SPEC)


def test_recurrent_critics_in_a_list_have_states_of_their_own():
    def make():
        torch.manual_seed(0)
        names, read = ("critic", "value"), "action"
        heads = [ValueOperator(MLP(HIDDEN + 1, 1), [f"{n}_features", read]) for n in names]
        parts = [TensorDictSequential(gru(n), h) for n, h in zip(names, heads, strict=True)]
        return SACLoss(actor(), parts, action_spec=SPEC).double()

    check_bootstrapped_loss(make, rows("SACLoss"))
