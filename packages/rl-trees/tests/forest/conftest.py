"""Rollouts that are written as lists of steps, and forests of them."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_trees import MCTSForest


@pytest.fixture(scope="session")
def rollout_of():
    """Makes `[T]` of steps (observation, action, next observation, done), numbered by rewards."""

    def make(steps):
        seen, actions, after, dones = (torch.tensor(column) for column in zip(*steps, strict=True))
        rewards = torch.arange(1.0, len(steps) + 1)[:, None]
        after = {"observation": after, "reward": rewards, "done": dones[:, None]}
        return TensorDict({"observation": seen, "action": actions, "next": after}, [len(steps)])

    return make


@pytest.fixture(scope="session")
def root_of():
    """Makes the root of an observation."""
    return lambda observation: TensorDict({"observation": torch.tensor(observation)}, [])


@pytest.fixture(scope="session")
def forest_of(rollout_of):
    """Makes a forest of rollouts, each a list of steps."""

    def make(*rollouts):
        forest = MCTSForest()
        for steps in rollouts:
            forest.extend(rollout_of(steps))
        return forest

    return make
