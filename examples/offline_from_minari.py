# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-datasets", "rl-envs", "rl-policies", "rl-record", "rl-value",
#     "h5py", "gymnasium[classic-control]", "tensordict", "torch",
# ]
# ///
"""Behavioural cloning of a dataset: recorded, written as Minari, read back, learnt from.

    python examples/offline_from_minari.py
    python examples/offline_from_minari.py --episodes 50 --updates 2000

A rule that balances a pole is recorded for some episodes. They are written as a dataset of Minari,
which anybody can read. The files are then read as any other dataset of Minari, and an actor learns
from them.
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
from torch import Tensor

from rl_datasets import MinariExperienceReplay, to_minari
from rl_envs import GymEnv
from rl_policies import MLP, ProbabilisticActor
from rl_record import Evaluator
from rl_value import BCLoss

NAME = "demo/pole-v0"


def rule(observation: Tensor) -> Tensor:
    """Push to the side to which the pole falls."""
    return (observation[..., 2:].sum(-1) > 0).long()


def make_env() -> GymEnv:
    """A pole on a cart, whose actions are 0 and 1."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def recorded(episodes: int) -> Iterator[TensorDictBase]:
    """Whole episodes of the rule."""
    env, policy = make_env(), TensorDictModule(rule, ["observation"], ["action"])
    env.set_seed(0)
    for _ in range(episodes):
        yield env.rollout(1_000, policy)


def trained(data: MinariExperienceReplay, updates: int) -> ProbabilisticActor:
    """An actor that does what the dataset does."""
    actor = ProbabilisticActor(
        TensorDictModule(MLP(4, 2, num_cells=[64, 64]), ["observation"], ["logits"]),
        ["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=False,
    )
    loss = BCLoss(actor)
    optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)
    for update in range(updates):
        value = loss(data.sample())["loss_bc"]
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if update % max(1, updates // 5) == 0:
            print(f"update {update:5}: loss {value.item():.3f}")
    return actor


def main() -> None:
    """Record, write, read, learn, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--updates", type=int, default=500)
    given = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as root:
        space = gymnasium.make("CartPole-v1").action_space
        folder = to_minari(recorded(given.episodes), NAME, root=root, action_space=space)
        print("written:", *(path.name for path in sorted(Path(folder, "data").iterdir())))
        data = MinariExperienceReplay(NAME, batch_size=256, path=folder, root=root)
        actor = trained(data, given.updates)
    learnt = Evaluator(make_env(), actor, num_episodes=10).evaluate()
    chance = Evaluator(make_env(), make_env().rand_step, num_episodes=10).evaluate()
    print(f"learnt {learnt}\nchance {chance}")


if __name__ == "__main__":
    main()
