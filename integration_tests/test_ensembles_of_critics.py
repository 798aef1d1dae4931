"""Every loss of several critics: an ensemble at once is the same critics one after the other."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import pytest
import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn

from rl_policies import MLP, Ensemble, ProbabilisticActor, TanhNormal, ValueOperator
from rl_value import (
    CQLLoss,
    CrossQLoss,
    DiscreteSACLoss,
    IQLLoss,
    REDQLoss,
    SACLoss,
    SoftUpdate,
    TD3BCLoss,
    TD3Loss,
)
from test_recurrent_losses import CHOICES, SPEC, Still, chooser, rows, state_critic
from test_recurrent_losses import actor as recurrent_actor
from test_recurrent_losses import deterministic as recurrent_deterministic

NUM = 3


def actor():
    """One that takes no state from step to step."""
    net = nn.Sequential(MLP(2, 2, num_cells=[7]), NormalParamExtractor())
    net = TensorDictModule(net, ["observation"], ["loc", "scale"])
    return ProbabilisticActor(net, ["loc", "scale"], distribution_class=Still)


MAKERS = {
    "SACLoss": lambda critics: SACLoss(recurrent_actor(), critics, action_spec=SPEC),
    "REDQLoss": lambda critics: REDQLoss(recurrent_actor(), critics, action_spec=SPEC),
    "CrossQLoss": lambda critics: CrossQLoss(actor(), critics, action_spec=SPEC),
    "CQLLoss": lambda critics: CQLLoss(recurrent_actor(), critics, num_random=2, action_spec=SPEC),
    "IQLLoss": lambda critics: IQLLoss(
        recurrent_actor(), critics, state_critic(), action_spec=SPEC
    ),
    "TD3Loss": lambda critics: TD3Loss(recurrent_deterministic(), critics, action_spec=SPEC),
    "TD3BCLoss": lambda critics: TD3BCLoss(recurrent_deterministic(), critics, action_spec=SPEC),
    "DiscreteSACLoss": lambda critics: DiscreteSACLoss(
        chooser(), critics, num_actions=CHOICES, action_space="one_hot"
    ),
}


def learned(name, nets, at_once):
    """Losses, gradients of the critics (one tensor for each member), and errors."""
    torch.manual_seed(0)
    read, written = ["observation", "action"], ["state_action_value"]
    if name.startswith("Discrete"):
        read, written = ["observation"], ["action_value"]
    if at_once:
        critics = ValueOperator(Ensemble(nets), read, written)
    else:
        critics = [ValueOperator(net, read, written) for net in nets]
    loss, batch = MAKERS[name](critics).double(), rows(name)
    torch.manual_seed(1)
    found = loss(batch)
    sum(value for key, value in found.items() if key.startswith("loss")).backward()
    ours = list(loss.qvalue_network.parameters())
    if at_once:
        slopes = torch.stack([one.grad.square().flatten(1).sum(1) for one in ours]).sum(0)
    else:
        slopes = torch.stack([one.grad.square().sum() for one in ours]).reshape(NUM, -1).sum(1)
    return found.detach().to_dict(), slopes, batch["td_error"]


@pytest.mark.parametrize("name", MAKERS)
def test_critics_at_once_learn_what_critics_in_turn_learn(name):
    torch.manual_seed(3)
    sizes = (2, CHOICES) if name.startswith("Discrete") else (3, 1)
    nets = [MLP(*sizes, num_cells=[7, 5], activation_class=nn.Tanh).double() for _ in range(NUM)]
    torch.testing.assert_close(
        learned(name, nets, at_once=True), learned(name, nets, at_once=False)
    )


def updated(kind, *, compiled):
    """Parameters after two updates of SAC, target networks included."""
    torch.manual_seed(0)
    net = nn.Sequential(MLP(2, 2, num_cells=[7]), NormalParamExtractor())
    acting = ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        ["loc", "scale"],
        spec=SPEC,
        distribution_class=TanhNormal,
    )
    critic = ValueOperator(MLP(3, 1, num_cells=[7, 5]), ["observation", "action"])
    loss = kind(acting, critic).double()
    optimizer, follow = torch.optim.Adam(loss.parameters(), lr=0.01), SoftUpdate(loss, tau=0.1)
    call = torch.compile(loss, backend="eager", fullgraph=True) if compiled else loss
    batch = rows("SACLoss")
    for _ in range(2):
        optimizer.zero_grad()
        sum(
            value for key, value in call(batch.clone()).items() if key.startswith("loss")
        ).backward()
        optimizer.step()
        follow.step()
    return loss.state_dict()


@pytest.mark.filterwarnings("ignore:torch._dynamo.config:FutureWarning")
@pytest.mark.parametrize("kind", [SACLoss, REDQLoss])
def test_an_update_whose_loss_is_one_graph_learns_the_same(kind):
    torch.compiler.reset()
    torch.testing.assert_close(updated(kind, compiled=True), updated(kind, compiled=False))
