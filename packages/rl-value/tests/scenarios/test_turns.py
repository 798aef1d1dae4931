"""Members of a group that act in turns: returns go through the steps in which they wait."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Categorical

from rl_value import GAE, A2CLoss, ClipPPOLoss, DQNLoss, VTrace

ACTIONS, SIZE = 3, 4
# the second player ends the game in the fourth turn, and the first one has lost
MOVER = torch.tensor([0, 1, 0, 1, 0])
REWARD = torch.tensor([[0, 0], [0, 0], [0.5, 0], [-1, 1], [0, 0]]).unsqueeze(-1)


def game():
    """A batch `[5]` of two players: a game of four turns, and one turn of the next one."""
    torch.manual_seed(0)
    acts = torch.nn.functional.one_hot(MOVER, 2).bool().unsqueeze(-1)
    over = torch.tensor([False, False, False, True, False]).reshape(5, 1)
    ended = over.unsqueeze(1).expand(5, 2, 1).clone()
    no, seen = torch.zeros_like(ended), torch.randn(5, 2, SIZE)
    flags = {"done": ended, "terminated": ended, "truncated": no}
    agents = {
        "observation": seen,
        "action": torch.randint(ACTIONS, (5, 2)),
        "sample_log_prob": torch.randn(5, 2) / 9 - 1.1,
        "mask": acts,
        "waiting": ~acts,
        **dict.fromkeys(flags, no),
    }
    start = torch.tensor([True, False, False, False, True]).reshape(5, 1)
    agents["is_init"] = start.unsqueeze(1).expand(5, 2, 1)
    after = {"observation": torch.randn(5, 2, SIZE), "reward": REWARD, **flags}
    after["observation"][:3] = seen[1:4]
    root = {"done": over, "terminated": over, "truncated": torch.zeros_like(over)}
    marks = {
        "traj_ids": torch.tensor([0, 0, 0, 0, 1]),
        "traj_step": torch.tensor([0, 1, 2, 3, 0]),
    }
    return TensorDict(
        {
            "agents": TensorDict(agents, [5, 2]),
            "is_init": start,
            "collector": marks,
            "next": {"agents": TensorDict(after, [5, 2]), **root},
        },
        [5],
    )


NAMES = {
    name: ("agents", name)
    for name in ("value", "reward", "done", "terminated", "advantage", "value_target")
}
OWN = {name: ("agents", name) for name in ("action", "sample_log_prob")}


def networks():
    torch.manual_seed(1)
    logits = TensorDictModule(
        torch.nn.Linear(SIZE, ACTIONS), [("agents", "observation")], [("agents", "logits")]
    )
    chance = ProbabilisticTensorDictModule(
        {"logits": ("agents", "logits")},
        [("agents", "action")],
        distribution_class=Categorical,
        log_prob_key=("agents", "sample_log_prob"),
        return_log_prob=True,
    )
    critic = TensorDictModule(
        torch.nn.Linear(SIZE, 1), [("agents", "observation")], [("agents", "value")]
    )
    return ProbabilisticTensorDictSequential(logits, chance), critic


def nothing(seen):
    return torch.zeros(*seen.shape[:-1], 1)


def test_returns_of_a_player_go_through_the_turns_of_the_other():
    critic = TensorDictModule(nothing, [("agents", "observation")], [("agents", "value")])
    gae = GAE(gamma=0.5, lmbda=1.0, value_network=critic)
    gae.set_keys(**NAMES)
    found = gae(game())["agents", "advantage"].squeeze(-1)
    first = [0.5**2 * 0.5 - 0.5**3, 0.5 * 0.5 - 0.5**2, 0.5 - 0.5, -1.0]
    second = [0.5**3, 0.5**2, 0.5, 1.0]
    torch.testing.assert_close(found[:4].T, torch.tensor([first, second]))


@pytest.mark.parametrize("kind", [A2CLoss, ClipPPOLoss])
def test_the_actor_learns_from_its_turns_and_the_critic_from_every_step(kind):
    actor, critic = networks()
    gae = GAE(gamma=0.9, lmbda=0.7, value_network=critic)
    gae.set_keys(**NAMES)
    batch = gae(game())
    loss = (
        kind(actor, critic, loss_critic_type="l2", normalize_advantage=True)
        if (kind is ClipPPOLoss)
        else kind(actor, critic, loss_critic_type="l2")
    )
    loss.set_keys(**NAMES, **OWN)
    found = loss(batch)
    acts = batch["agents", "mask"].squeeze(-1)
    dist = actor.get_dist(batch)
    entropy = dist.entropy()[acts].mean()
    torch.testing.assert_close(found["entropy"], entropy.detach())
    apart = critic(batch.copy())["agents", "value"] - batch["agents", "value_target"]
    torch.testing.assert_close(found["loss_critic"], apart.square().mean())
    other = batch.clone()
    other["agents", "action"][~acts] = (other["agents", "action"][~acts] + 1) % ACTIONS
    other["agents", "sample_log_prob"][~acts] = float("nan")
    torch.testing.assert_close(loss(other)["loss_objective"], found["loss_objective"])


def test_actions_that_nobody_took_weigh_no_returns():
    actor, critic = networks()
    trace = VTrace(gamma=0.9, lmbda=0.7, value_network=critic, actor_network=actor)
    trace.set_keys(**NAMES, sample_log_prob=OWN["sample_log_prob"])
    trace.action_key = OWN["action"]
    batch, other = game(), game()
    waits = other["agents", "waiting"].squeeze(-1)
    other["agents", "action"][waits] = (other["agents", "action"][waits] + 1) % ACTIONS
    found, expected = (trace(one)["agents", "advantage"] for one in (other, batch))
    torch.testing.assert_close(found, expected)


def test_action_values_are_learned_in_every_step_that_a_player_is_in():
    network = TensorDictModule(
        torch.nn.Linear(SIZE, ACTIONS), [("agents", "observation")], [("agents", "values")]
    )
    loss = DQNLoss(network, action_space="categorical", delay_value=False)
    flags = {name: NAMES[name] for name in ("reward", "done", "terminated")}
    loss.set_keys(action=OWN["action"], action_value=("agents", "values"), **flags)
    batch = game()
    found = loss(batch)["loss"]
    assert loss.counted(batch).all()
    torch.testing.assert_close(found, batch["td_error"].mean())


def test_members_that_neither_act_nor_wait_are_out():
    batch = game()
    batch["agents", "waiting"] = torch.zeros(5, 2, 1, dtype=torch.bool)
    loss = A2CLoss(*networks())
    loss.set_keys(**NAMES, **OWN)
    assert torch.equal(loss.counted(batch), batch["agents", "mask"].squeeze(-1))


def test_compiled_losses_leave_out_the_same_steps():
    actor, critic = networks()
    gae = GAE(gamma=0.9, lmbda=0.7, value_network=critic)
    gae.set_keys(**NAMES)
    batch, loss = gae(game()), A2CLoss(actor, critic)
    loss.set_keys(**NAMES, **OWN)
    found = torch.compile(loss, backend="eager")(batch.clone())
    for key, value in loss(batch).items():
        torch.testing.assert_close(found[key], value)
