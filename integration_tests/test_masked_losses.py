"""Losses of action values where a mask says which actions there are."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_policies import (
    DistributionalQValueActor,
    DistributionalQValueModule,
    MaskedCategorical,
    ProbabilisticActor,
    QValueActor,
    QValueModule,
)
from rl_specs import Categorical
from rl_value import (
    DiscreteCQLLoss,
    DiscreteSACLoss,
    DistributionalDQNLoss,
    DQNLoss,
)

GAMMA, ACTIONS, ATOMS = 0.9, 3, 5
SUPPORT = torch.linspace(-2, 2, ATOMS)


def transitions(next_mask, terminated=(False, False, False, False)):
    """Rows of their own `[4]`, of which each state allows its own actions."""
    torch.manual_seed(0)
    over = torch.tensor(terminated).unsqueeze(-1)
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 0, 1]]).bool()
    return TensorDict(
        {
            "observation": torch.randn(4, 2),
            "action": torch.tensor([0, 1, 2, 0]),
            "action_mask": mask,
            "collector": {"traj_ids": torch.arange(4), "traj_step": torch.zeros(4).long()},
            "next": {
                "observation": torch.randn(4, 2),
                "action_mask": next_mask,
                "reward": torch.randn(4, 1),
                "done": over,
                "terminated": over,
            },
        },
        [4],
    )


NEXT = torch.tensor([[0, 1, 1], [1, 0, 0], [1, 0, 1], [0, 0, 1]]).bool()
EMPTY = NEXT & torch.tensor([True, True, False, True]).unsqueeze(-1)  # row 2 allows nothing


def critic(kind):
    """An actor of action values as a user makes it, whole or of parts."""
    net = nn.Linear(2, ACTIONS)
    if kind == "whole":
        return QValueActor(net, spec=Categorical(ACTIONS), action_mask_key="action_mask")
    return TensorDictSequential(
        TensorDictModule(net, ["observation"], ["action_value"]),
        QValueModule(spec=Categorical(ACTIONS), action_mask_key="action_mask"),
    )


class Atoms(nn.Module):
    """Log-probabilities `[*B, atoms, n]`."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, ATOMS * ACTIONS)

    def forward(self, observation):
        """Distributions of states ``[*B, 2]``."""
        shape = (*observation.shape[:-1], ATOMS, ACTIONS)
        return self.net(observation).reshape(shape).log_softmax(-2)


def distribution(kind):
    """The same of distributions of returns."""
    settings = {"spec": Categorical(ACTIONS), "action_mask_key": "action_mask"}
    if kind == "whole":
        return DistributionalQValueActor(Atoms(), SUPPORT, **settings)
    return TensorDictSequential(
        TensorDictModule(Atoms(), ["observation"], ["action_value"]),
        DistributionalQValueModule(None, SUPPORT, **settings),
    )


def disturbed(loss):
    """A loss whose network has moved from its target network, so that their choices differ."""
    with torch.no_grad():
        for parameter in loss.value_network.parameters():
            parameter.add_(torch.randn_like(parameter))
    return loss


@pytest.mark.parametrize("kind", ["whole", "parts"])
@pytest.mark.parametrize("double", [False, True])
def test_next_actions_of_q_learning_are_allowed_ones(kind, double):
    """Targets of DQN are those of the best allowed action, computed row by row."""
    torch.manual_seed(1)
    loss = disturbed(DQNLoss(critic(kind), double_dqn=double, action_space="categorical"))
    loss.make_value_estimator(gamma=GAMMA)
    batch = transitions(NEXT)
    late = loss.target_value_network(batch["next"].clone())["action_value"]
    now = loss.value_network(batch["next"].clone())["action_value"]
    chooser = (now if double else late).masked_fill(~NEXT, -torch.inf)
    ahead = late.gather(-1, chooser.argmax(-1, keepdim=True))
    values = loss.value_network(batch.clone())["action_value"]
    taken = values.gather(-1, batch["action"].unsqueeze(-1))
    target = batch["next", "reward"] + GAMMA * ahead
    torch.testing.assert_close(loss(batch)["loss"], (taken - target).square().mean())


@pytest.mark.parametrize("kind", ["whole", "parts"])
@pytest.mark.parametrize("double", [False, True])
def test_next_actions_of_distributions_are_allowed_ones(kind, double):
    """So are targets of distributions, projected atom by atom."""
    torch.manual_seed(2)
    made = DistributionalDQNLoss(
        distribution(kind),
        gamma=GAMMA,
        support=SUPPORT,
        double_dqn=double,
        action_space="categorical",
    )
    loss, batch = disturbed(made), transitions(NEXT)
    probs = loss.target_value_network(batch["next"].clone())["action_value"].exp()
    now = loss.value_network(batch["next"].clone())["action_value"].exp()
    means = ((now if double else probs) * SUPPORT[:, None]).sum(-2)
    best = means.masked_fill(~NEXT, -torch.inf).argmax(-1)
    log_probs = loss.value_network(batch.clone())["action_value"]
    errors = []
    for row in range(4):
        target = torch.zeros(ATOMS)
        for atom in range(ATOMS):
            value = batch["next", "reward"][row] + GAMMA * SUPPORT[atom]
            place = float(value.clamp(-2, 2) + 2)  # neighbours on the support are 1 apart
            below = min(int(place), ATOMS - 2)
            weight = probs[row, atom, best[row]]
            target[below] += weight * (below + 1 - place)
            target[below + 1] += weight * (place - below)
        errors.append(-(target * log_probs[row, :, batch["action"][row]]).sum())
    torch.testing.assert_close(loss(batch)["loss"], torch.stack(errors).mean())


def policy():
    """A policy that reads the mask."""
    return ProbabilisticActor(
        TensorDictModule(nn.Linear(2, ACTIONS), ["observation"], ["logits"]),
        in_keys={"logits": "logits", "mask": "action_mask"},
        spec=Categorical(ACTIONS),
        distribution_class=MaskedCategorical,
    )


LOSSES = {
    "dqn": lambda: DQNLoss(critic("whole")),
    "double": lambda: DQNLoss(critic("parts"), double_dqn=True, action_space="categorical"),
    "cql": lambda: DiscreteCQLLoss(critic("whole")),
    "c51": lambda: DistributionalDQNLoss(distribution("whole"), gamma=GAMMA),
    "double c51": lambda: DistributionalDQNLoss(
        distribution("whole"), gamma=GAMMA, double_dqn=True
    ),
    "sac": lambda: DiscreteSACLoss(
        policy(), TensorDictModule(nn.Linear(2, ACTIONS), ["observation"], ["action_value"])
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_last_state_of_an_episode_may_allow_nothing(name):
    """A terminated row whose next mask is empty changes no loss and no gradient."""
    over = (False, False, True, False)
    found = []
    for mask in (NEXT, EMPTY):
        torch.manual_seed(3)
        loss = LOSSES[name]()
        out = loss(transitions(mask, over))
        sum(each for key, each in out.items() if key.startswith("loss")).backward()
        found.append((out, [p.grad for p in loss.parameters() if p.grad is not None]))
    torch.testing.assert_close(*(out.to_dict() for out, _ in found))
    torch.testing.assert_close(*(grads for _, grads in found))
    assert all(bool(grad.isfinite().all()) for grad in found[1][1])


@pytest.mark.parametrize("name", LOSSES)
def test_state_that_goes_on_must_allow_an_action(name):
    """Where the episode goes on, no forbidden action is taken in its place."""
    with pytest.raises(ValueError, match="is NaN or infinite"):
        LOSSES[name]()(transitions(EMPTY))


def test_conservative_term_is_of_allowed_actions():
    """Forbidden actions are not in the sum of the conservative term."""
    torch.manual_seed(4)
    loss = DiscreteCQLLoss(critic("parts"), action_space="categorical")
    batch = transitions(NEXT)
    values = loss.value_network(batch.clone())["action_value"]
    gaps = [
        values[row][batch["action_mask"][row]].logsumexp(0) - values[row, batch["action"][row]]
        for row in range(4)
    ]
    torch.testing.assert_close(loss(batch)["loss_cql"], torch.stack(gaps).mean())
