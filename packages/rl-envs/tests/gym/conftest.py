"""Vectors that reset a row while the others step, and the same rows one by one."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from rl_envs import GymEnv, GymVectorEnv, SerialEnv

SEEN = spaces.Box(-np.inf, np.inf, (3,), np.float32)

LENGTHS = [[3, 1, 4], [2], [5, 1, 1], [7, 2]]


class Row(gymnasium.Env):
    """Shows (row, episode, step); episodes have the given lengths, every second one truncates."""

    observation_space, action_space = SEEN, spaces.Discrete(2)

    def __init__(self, row, lengths):
        self.row, self.lengths, self.episode = row, lengths, -1

    def seen(self):
        return np.array([self.row, self.episode, self.count], np.float32)

    def reset(self, seed=None, options=None):
        self.episode, self.count = self.episode + 1, 0
        return self.seen(), {}

    def step(self, action):
        self.count += 1
        over = self.count == self.lengths[self.episode % len(self.lengths)]
        ends = (over, False) if self.episode % 2 else (False, over)
        return self.seen(), float(self.count + action), *ends, {}


class Rows(VectorEnv):
    """The same rows as a vector with next-step autoreset, and nothing else to reset by."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, lengths):
        self.rows = [Row(i, one) for i, one in enumerate(lengths)]
        self.num_envs = len(lengths)
        self.single_observation_space, self.single_action_space = SEEN, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.over = np.zeros(self.num_envs, bool)
        return np.stack([row.reset()[0] for row in self.rows]), {}

    def step(self, actions):
        found = [
            (row.reset()[0], 0.0, False, False) if over else row.step(action)[:4]
            for row, over, action in zip(self.rows, self.over, actions, strict=True)
        ]
        seen, reward, terminated, truncated = (np.array(part) for part in zip(*found, strict=True))
        self.over = terminated | truncated
        return seen.astype(np.float32), reward, terminated, truncated, {}


def _native(lengths=LENGTHS):
    return GymVectorEnv(Rows(lengths))


def _one_by_one(lengths=LENGTHS):
    makers = [lambda i=i, one=one: GymEnv(Row(i, one)) for i, one in enumerate(lengths)]
    return SerialEnv(len(lengths), makers)


@pytest.fixture(scope="session")
def native():
    return _native


@pytest.fixture(scope="session")
def one_by_one():
    return _one_by_one
