"""Checks of the results of Gymnasium environments, also in another process."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_envs import GymEnv, ParallelEnv, SerialEnv


class Broken(gymnasium.Env):
    """Returns the given results from its reset and from its third step."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, at_reset, at_step):
        self.at_reset, self.at_step, self.count = at_reset, at_step, 0

    def reset(self, **kwargs):
        return self.at_reset

    def step(self, action):
        self.count += 1
        seen = np.zeros(2, np.float32)
        return self.at_step if self.count == 3 else (seen, 0.0, False, False, {})


GOOD = (np.zeros(2, np.float32), {})


@pytest.mark.parametrize("found", [None, (None, {}), GOOD[0], (*GOOD, 1)])
def test_a_reset_that_returns_something_else_is_named(found):
    with pytest.raises(TypeError, match=r"reset of <Broken.* must return \(observation, info\)"):
        GymEnv(Broken(found, None)).reset()


@pytest.mark.parametrize("found", [None, (None, 0.0, False, False, {}), (*GOOD, 0.0, False)])
@pytest.mark.parametrize("plays_rows", [True, False])
def test_a_step_that_returns_something_else_is_named(found, plays_rows):
    env = GymEnv(Broken(GOOD, found))
    callback = None if plays_rows else (lambda env, step: None)
    with pytest.raises(TypeError, match=r"step of <Broken.* must return \(observation, reward"):
        env.rollout(5, callback=callback)


@pytest.mark.parametrize("reward", [np.zeros(2), None, "much", [1.0, 2.0]], ids=repr)
@pytest.mark.parametrize("plays_rows", [True, False])
def test_a_reward_that_is_no_number_is_named(reward, plays_rows):
    env = GymEnv(Broken(GOOD, (GOOD[0], reward, False, False, {})))
    callback = None if plays_rows else (lambda env, step: None)
    with pytest.raises(TypeError, match=r"the reward of <Broken.* must be one number: got "):
        env.rollout(5, callback=callback)


@pytest.mark.parametrize("reward", [2, np.float64(2), np.float32(2), np.array([2.0])], ids=repr)
def test_a_reward_may_be_any_number(reward):
    env = GymEnv(Broken(GOOD, (GOOD[0], reward, False, False, {})))
    assert env.rollout(3)["next", "reward"].flatten().tolist() == [0, 0, 2]


def broken():
    return GymEnv(Broken(GOOD, None))


def test_the_same_comes_through_other_environments_and_processes():
    with pytest.raises(TypeError, match="got None"):
        SerialEnv(2, broken).rollout(5)
    with (
        ParallelEnv(2, broken, mp_start_method="fork") as env,
        pytest.raises(TypeError, match=r"step of <Broken.*got None"),
    ):
        env.rollout(5)
