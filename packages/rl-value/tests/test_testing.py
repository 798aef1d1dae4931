"""The conformance checks pass on classes of the package and fail on broken ones."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule
from tensordict.nn import ProbabilisticTensorDictSequential as Sequential
from torch import nn

from rl_layout.synthetic import trajectories
from rl_value import (
    GAE,
    A2CLoss,
    ClipPPOLoss,
    DistributionalDQNLoss,
    DQNLoss,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
)
from rl_value.testing import check_bootstrapped_loss, check_estimator, check_loss

ESTIMATORS = {
    "gae": lambda net: GAE(gamma=0.9, lmbda=0.8, value_network=net),
    "td0": lambda net: TD0Estimator(gamma=0.9, value_network=net),
    "td1": lambda net: TD1Estimator(gamma=0.9, value_network=net),
    "td_lambda": lambda net: TDLambdaEstimator(gamma=0.9, lmbda=0.8, value_network=net),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimator_of_the_package_conforms(name):
    check_estimator(ESTIMATORS[name])


def steps():
    batch = trajectories([3, 4])
    batch["action"] = batch["action"].squeeze(-1)
    batch["sample_log_prob"] = -torch.ones(7)
    return batch


def actor():
    torch.manual_seed(0)
    head = TensorDictModule(nn.Linear(2, 3), ["observation"], ["logits"])
    categorical = torch.distributions.Categorical
    draw = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=categorical)
    return Sequential(head, draw)


def critic():
    return TensorDictModule(nn.Linear(2, 1), ["observation"], ["state_value"])


def dqn():
    torch.manual_seed(0)
    net = TensorDictModule(nn.Linear(2, 3), ["observation"], ["action_value"])
    return DQNLoss(net, action_space="categorical")


LOSSES = {
    "a2c": lambda: A2CLoss(actor(), critic()),
    "dqn": dqn,
    "ppo": lambda: ClipPPOLoss(actor(), critic()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_of_the_package_conforms(name):
    check_loss(LOSSES[name], steps())


class Leaking(TD0Estimator):
    """Adds to each target the mean of all: trajectories reach each other."""

    def estimate(self, valued):
        advantage, target = super().estimate(valued)
        return advantage, target + target.mean()


class BlindToEnds(TD0Estimator):
    """Bootstraps from the state after a termination too."""

    def estimate(self, valued):
        target = valued.reward + valued.gamma * valued.next_value
        return target - valued.value, target


class Overwriting(TD0Estimator):
    """Scales the caller's rewards."""

    def forward(self, tensordict, **settings):
        tensordict["next", "reward"].mul_(2)
        return super().forward(tensordict, **settings)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Leaking, "its own steps alone"),
        (BlindToEnds, "worth nothing"),
        (Overwriting, "no stored entry"),
    ],
)
def test_broken_estimator_fails(broken, promise):
    with pytest.raises(AssertionError, match=promise):
        check_estimator(lambda net: broken(gamma=0.9, value_network=net))


class MeanOfRows(nn.Module):
    """A mean over all rows, padding included."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(2, 1)

    def forward(self, batch):
        error = self.net(batch["observation"].nan_to_num()) - batch["next", "reward"].nan_to_num()
        return TensorDict({"loss": error.square().mean()})


class Nameless(MeanOfRows):
    """Calls its loss otherwise."""

    def forward(self, batch):
        return super().forward(batch).rename_key_("loss", "objective")


@pytest.mark.parametrize(
    ("broken", "promise"),
    [(MeanOfRows, "padded rows do not change the losses"), (Nameless, "begins with 'loss'")],
)
def test_broken_loss_fails(broken, promise):
    with pytest.raises(AssertionError, match=promise):
        check_loss(broken, steps())


class Rewritten(DQNLoss):
    """Computes targets of another batch than it is given."""

    def rewrite(self, batch):
        return batch

    def targets(self, tensordict):
        found = super().targets(self.rewrite(tensordict.clone()))
        return tensordict.set("action_value_target", found["action_value_target"])

    def forward(self, tensordict):
        if tensordict.get("action_value_target") is not None:
            return super().forward(tensordict)
        with_targets = self.targets(tensordict.clone())
        losses = super().forward(with_targets)
        tensordict["td_error"] = with_targets["td_error"]
        return losses


class Endless(Rewritten):
    def rewrite(self, batch):
        return batch.set(("next", "terminated"), torch.zeros(len(batch), 1, dtype=torch.bool))


class Ending(Rewritten):
    def rewrite(self, batch):
        return batch.set(("next", "terminated"), batch["next", "done"])


class OneStep(Rewritten):
    def rewrite(self, batch):
        return batch.exclude(("next", "steps_to_next_obs"))


class Blended(Rewritten):
    def targets(self, tensordict):
        super().targets(tensordict)
        first = tensordict["action_value_target"][:1]
        return tensordict.set("action_value_target", tensordict["action_value_target"] + first)


class Forgetful(DQNLoss):
    def forward(self, tensordict):
        return with_error(super().forward, tensordict, "action_value_target")


def with_error(forward, batch, *unread):
    """Losses by what is left of a batch, whose errors are written to all of it."""
    given = batch.exclude(*unread)
    losses = forward(given)
    batch["td_error"] = given["td_error"]
    return losses


def q_learning(kind=DQNLoss, estimator="td0", **settings):
    def make():
        torch.manual_seed(0)
        net = TensorDictModule(nn.Linear(2, 3), ["observation"], ["action_value"])
        loss = kind(net, action_space="categorical", **settings)
        return loss.make_value_estimator(estimator)

    return make


def distributional():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 15), nn.Unflatten(-1, (5, 3)), nn.LogSoftmax(-2))
    net = TensorDictModule(net, ["observation"], ["action_value"])
    support = torch.linspace(-40, 40, 5)
    return DistributionalDQNLoss(net, gamma=0.9, support=support, action_space="categorical")


@pytest.mark.parametrize(
    "make", [q_learning(), q_learning(Rewritten), distributional], ids=["q", "rewritten", "atoms"]
)
def test_bootstrapped_loss_of_the_package_conforms(make):
    check_bootstrapped_loss(make, steps())


@pytest.mark.parametrize(
    ("make", "promise"),
    [
        (q_learning(Endless), "worth nothing"),
        (q_learning(Ending), "a truncation bootstraps"),
        (q_learning(OneStep), "exponent of the discount"),
        (q_learning(Blended), "its own rows alone"),
        (q_learning(estimator="td_lambda"), "no later row"),
        (q_learning(Forgetful), "targets that are stored"),
        (q_learning(use_prioritized_weights=False), "priority weight 0 is not learned from"),
    ],
)
def test_broken_bootstrapped_loss_fails(make, promise):
    with pytest.raises(AssertionError, match=promise):
        check_bootstrapped_loss(make, steps())


class CountsAll(DQNLoss):
    """Counts rows without history and next observation, and leaves out padding."""

    def forward(self, tensordict):
        return with_error(super().forward, tensordict, *HIDDEN)


HIDDEN = [("collector", "next_missing"), ("collector", "history_missing")]


def test_loss_that_counts_rows_without_next_observation_fails():
    with pytest.raises(AssertionError, match="next_missing"):
        check_bootstrapped_loss(q_learning(CountsAll), steps())
