"""Rows that do not show what the policy saw are in no mean of any loss."""

import pytest
import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Categorical

from rl_layout import keys
from rl_layout.testing import EndKind, trajectories
from rl_value import (
    A2CLoss,
    ClipPPOLoss,
    DistributionalDQNLoss,
    DQNLoss,
    KLPENPPOLoss,
    PPOLoss,
    ReinforceLoss,
)

LOST = torch.tensor([0, 1, 0, 0, 1, 0, 0]).bool()


def actor():
    return ProbabilisticTensorDictSequential(
        TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical),
    )


def critic():
    return TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])


def distributional():
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 15), torch.nn.Unflatten(-1, (5, 3)), torch.nn.LogSoftmax(-2)
    )
    net = TensorDictModule(net, ["observation"], ["action_value"])
    support = torch.linspace(-1, 1, 5)
    return DistributionalDQNLoss(net, gamma=0.9, support=support, action_space="categorical")


def dqn(kind="td0", **settings):
    net = TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["action_value"])
    return DQNLoss(net, action_space="categorical").make_value_estimator(kind, **settings)


MAKERS = {
    **{
        kind.__name__: lambda kind=kind: kind(actor(), critic())
        for kind in (PPOLoss, ClipPPOLoss, KLPENPPOLoss, A2CLoss, ReinforceLoss)
    },
    "PPOLoss, scaled": lambda: PPOLoss(actor(), critic(), normalize_advantage=True),
    "PPOLoss, sum": lambda: PPOLoss(actor(), critic(), reduction="sum"),
    "DQNLoss": dqn,
    "DQNLoss, to the end": lambda: dqn("td1", gamma=0.9),
    "DistributionalDQNLoss": distributional,
}


def rows():
    batch = trajectories([4, 3], EndKind.TRUNCATED)
    batch["action"] = batch["action"].squeeze(-1) % 3
    batch["sample_log_prob"] = -torch.rand(7)
    batch["logits"] = torch.randn(7, 3)
    batch["advantage"], batch["value_target"] = torch.randn(2, 7, 1)
    batch[keys.HISTORY_MISSING] = LOST
    return batch


CASES = [*((name, False) for name in MAKERS), ("ClipPPOLoss", True), ("DQNLoss, to the end", True)]


@pytest.mark.parametrize(("name", "compiled"), CASES)
def test_rows_without_history_change_no_loss_and_no_gradient(name, compiled):
    loss, batch = MAKERS[name](), rows()
    other = batch.clone()
    for key in ("advantage", "value_target", "sample_log_prob", "logits", ("next", "reward")):
        other[key][LOST] = 100.0
    other["action"][LOST] = 2
    call = torch.compile(loss, backend="eager", fullgraph=True) if compiled else loss
    results = []
    for given in (batch, other):
        loss.zero_grad()
        found = call(given.clone())
        total = sum(value for key, value in found.items() if key.startswith("loss"))
        total.backward()
        slopes = [weight.grad.clone() for weight in loss.parameters() if weight.grad is not None]
        beta = getattr(loss, "beta", None)
        if beta is not None:
            loss.reset()
        results.append((total.detach(), slopes))
    torch.testing.assert_close(*results)
    everything = loss(batch.exclude(keys.HISTORY_MISSING))
    whole = sum(value for key, value in everything.items() if key.startswith("loss"))
    assert not torch.isclose(whole, results[0][0])


def test_priorities_of_rows_without_history_are_zero():
    batch, loss = rows(), dqn()
    loss(batch)
    assert not batch["td_error"][LOST].any()
    assert batch["td_error"][~LOST].all()
