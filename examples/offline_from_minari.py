# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-datasets", "rl-envs", "rl-policies", "rl-record", "rl-value",
#     "h5py", "gymnasium[classic-control]", "tensordict", "torch",
# ]
# ///
"""IQL and behavioural cloning of a dataset: recorded, written as Minari, read back, learnt from.

    python examples/offline_from_minari.py
    python examples/offline_from_minari.py --loss bc --random 0

A rule that balances a pole, some of whose actions are replaced by random ones, is recorded for some
episodes. They are written as a dataset of Minari, which anybody can read. The files are then read
as any other dataset of Minari, and an actor learns from them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_datasets import MinariExperienceReplay, to_minari
from rl_envs import GymEnv
from rl_policies import MLP, ProbabilisticActor, ValueOperator
from rl_record import Evaluator
from rl_value import BCLoss, IQLLoss, LossModule, SoftUpdate

NAME = "demo/pole-v0"


class Rule(nn.Module):
    """Pushes to the side to which the pole falls, or often anywhere."""

    def __init__(self, random_share: float) -> None:
        super().__init__()
        self.random_share = random_share

    def forward(self, observation: Tensor) -> Tensor:
        """Actions 0 and 1 `[*B]` of observations `[*B, 4]`."""
        falls_right = observation[..., 2:].sum(-1) > 0
        is_random = torch.rand_like(observation[..., 0]) < self.random_share
        return torch.where(
            is_random, torch.rand_like(observation[..., 0]) < 0.5, falls_right
        ).long()


class Critic(nn.Module):
    """What an action is worth: of two heads, the one of the action."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = MLP(4, 2, num_cells=[64, 64])

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Values `[*B, 1]` of observations `[*B, 4]` and actions `[*B]`."""
        return self.heads(observation).gather(-1, action.unsqueeze(-1))


def make_env() -> GymEnv:
    """A pole on a cart, whose actions are 0 and 1."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def recorded(episodes: int, random_share: float) -> Iterator[TensorDictBase]:
    """Whole episodes of the rule."""
    env = make_env()
    policy = TensorDictModule(Rule(random_share), ["observation"], ["action"])
    env.set_seed(0)
    for _ in range(episodes):
        yield env.rollout(1_000, policy)


def make_loss(name: str) -> LossModule:
    """The loss of an actor, and for IQL of a critic and a value network."""
    actor = ProbabilisticActor(
        TensorDictModule(MLP(4, 2, num_cells=[64, 64]), ["observation"], ["logits"]),
        ["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=False,
    )
    if name == "bc":
        return BCLoss(actor)
    critic = ValueOperator(Critic(), ["observation", "action"])
    value = ValueOperator(MLP(4, 1, num_cells=[64, 64]), ["observation"])
    loss = IQLLoss(actor, critic, value, expectile=0.8, temperature=3.0)
    loss.make_value_estimator(gamma=0.98)
    return loss


def train(loss: LossModule, data: MinariExperienceReplay, updates: int) -> None:
    """Learn from the dataset alone."""
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    targets = SoftUpdate(loss, tau=0.01) if isinstance(loss, IQLLoss) else None
    for update in range(updates):
        losses = {name: x for name, x in loss(data.sample()).items() if name.startswith("loss_")}
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        if targets is not None:
            targets.step()
        if update % max(1, updates // 5) == 0:
            print(f"update {update:5}:", *(f"{name} {x.item():.3f}" for name, x in losses.items()))


def main() -> None:
    """Record, write, read, learn, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loss", choices=["iql", "bc"], default="iql")
    parser.add_argument("--random", type=float, default=0.5, help="share of the actions of data")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--updates", type=int, default=2000)
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # tensors as small as these are slower on several
    with tempfile.TemporaryDirectory() as root:
        space = gymnasium.make("CartPole-v1").action_space
        steps = recorded(given.episodes, given.random)
        folder = to_minari(steps, NAME, root=root, action_space=space)
        print("written:", *(path.name for path in sorted(Path(folder, "data").iterdir())))
        data = MinariExperienceReplay(NAME, batch_size=256, path=folder, root=root)
        loss = make_loss(given.loss)
        train(loss, data, given.updates)
    learnt = Evaluator(make_env(), loss.actor_network, num_episodes=20).evaluate()
    print(f"return of the data {data.report.mean_return:.1f}, learnt {learnt.mean:.1f}")


if __name__ == "__main__":
    main()
