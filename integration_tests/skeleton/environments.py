"""Environments that speak TED, one at a time: one whose every row can be proved, and CartPole."""

import gymnasium
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_layout import keys


class CountingEnv:
    """Observes [episode, step], which proves a row's neighbours; the reward is the step made.

    Args:
        endings: (length, "terminated" or "truncated"); episode e takes the one at e % len(endings).
        first_episode: number of the first episode, to tell environments apart.
    """

    def __init__(self, endings: list[tuple[int, str]], first_episode: int = 0) -> None:
        self.endings = endings
        self.episode, self.steps = first_episode - 1, 0

    def reset(self) -> TensorDict:
        """Start the next episode and return its first root."""
        self.episode, self.steps = self.episode + 1, 0
        return TensorDict({"observation": self._observation()}, [])

    def step(self, root: TensorDictBase) -> TensorDictBase:
        """Count one step, whatever the action; the episode ends at its length, in its own way."""
        self.steps += 1
        length, ending = self.endings[self.episode % len(self.endings)]
        ending = ending if self.steps == length else "not yet"
        over = ending == "terminated", ending == "truncated"
        return _stepped(root, self._observation(), float(self.steps), *over)

    def _observation(self) -> Tensor:
        return torch.tensor([self.episode, self.steps], dtype=torch.float32)


class CartPoleEnv:
    """Gymnasium's CartPole-v1: observation float32 [4], action int64 [], seeded once."""

    def __init__(self, seed: int) -> None:
        self.env = gymnasium.make("CartPole-v1")
        self.env.reset(seed=seed)

    def reset(self) -> TensorDict:
        """Start an episode and return its first root."""
        return TensorDict({"observation": torch.tensor(self.env.reset()[0])}, [])

    def step(self, root: TensorDictBase) -> TensorDictBase:
        """Push the cart to the left (action 0) or to the right (1)."""
        observation, reward, *over, _ = self.env.step(int(root["action"]))
        return _stepped(root, torch.tensor(observation), float(reward), *over)


def _stepped(
    root: TensorDictBase, observation: Tensor, reward: float, terminated: bool, truncated: bool
) -> TensorDictBase:
    row = root.clone(recurse=False)  # copies the structure, so that the caller's root gains no key
    row["next", "observation"] = observation
    row[keys.NEXT_REWARD] = torch.tensor([reward])
    row[keys.NEXT_TERMINATED] = torch.tensor([terminated])
    row[keys.NEXT_TRUNCATED] = torch.tensor([truncated])
    row[keys.NEXT_DONE] = torch.tensor([terminated or truncated])
    return row
