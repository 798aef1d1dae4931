import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_envs import GymEnv, PufferEnv, SerialEnv
from rl_layout import check_layout

MISSING = ("collector", "next_missing")


class Cycles:
    """A native vector: row i shows (seed, step) and is over after i + 2 steps, in one buffer."""

    single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    single_action_space = spaces.Discrete(3)

    def __init__(self, num_agents=3, ready=None, out=()):
        self.num_agents, self.out = num_agents, list(out)
        self.agents_per_batch = num_agents if ready is None else ready
        self.observations = np.zeros((num_agents, 2), np.float32)
        self.rewards = np.zeros(num_agents, np.float32)
        self.terminals, self.truncations = (np.zeros(num_agents, bool) for _ in range(2))
        self.is_closed = False

    def async_reset(self, seed=None):
        self.observations[:] = [seed, 0]
        for flags in (self.terminals, self.truncations):
            flags[:] = False

    def send(self, actions):
        self.rewards[:] = actions
        self.observations[:, 1] += 1
        over = self.observations[:, 1] == np.arange(self.num_agents) + 2
        self.terminals[:], self.truncations[:] = over, False
        self.terminals[0], self.truncations[0] = False, over[0]  # the first is cut
        self.observations[over, 1] = 0

    def recv(self):
        acting = np.ones(self.num_agents, bool)
        acting[self.out] = False
        flags = (self.terminals, self.truncations)
        return self.observations, self.rewards, *flags, [], np.arange(self.num_agents), acting

    def close(self):
        self.is_closed = True


def played(env, steps=9):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return env.rollout(steps, break_when_any_done=False)


def test_every_step_is_that_of_the_vector():
    env = PufferEnv(Cycles(), categorical_action_encoding=True)
    env.set_seed(7)
    batch = played(env)
    for row in range(3):
        length = row + 2
        step = torch.arange(9) % length
        over = step == length - 1
        assert torch.equal(batch["observation"][row, :, 1], step.float())
        assert (batch["observation"][row, :, 0] == 7).all()
        assert torch.equal(batch["next", "done"][row, :, 0], over)
        assert torch.equal(batch["next", "truncated"][row, :, 0], over & (row == 0))
        assert torch.equal(batch[MISSING][row], over)
        going = batch["next", "observation"][row, ~over, 1]
        assert torch.equal(going, step[~over] + 1.0)
    assert torch.equal(batch["next", "reward"].squeeze(-1), batch["action"].float())
    assert check_layout(batch).ok


def test_a_seed_is_drawn_where_none_is_given():
    seeds = {float(played(PufferEnv(Cycles()), 1)["observation"][0, 0, 0]) for _ in range(2)}
    assert len(seeds) == 2


def test_a_warning_says_once_that_there_are_no_last_observations():
    env = PufferEnv(Cycles())
    with pytest.warns(UserWarning, match="no 'final_obs'"):
        env.rollout(9, break_when_any_done=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.rollout(9, break_when_any_done=False)


def test_several_vectors_stand_in_a_batch():
    batch = played(SerialEnv(2, lambda: PufferEnv(Cycles(4))))
    assert batch.shape == (2, 4, 9)
    assert torch.equal(batch[MISSING], batch["next", "done"].squeeze(-1))


def test_what_is_no_vector_of_pufferlib_is_refused():
    with pytest.raises(TypeError, match=r"object has no \['single_observation_space'"):
        PufferEnv(object())
    with pytest.raises(ValueError, match="expected all of 4 agents in a step, got 2 at a time"):
        PufferEnv(Cycles(4, ready=2))
    with pytest.raises(TypeError, match=r"PufferEnv\(env\) makes one"):
        GymEnv(Cycles())


def test_agents_that_are_out_are_refused():
    with pytest.raises(RuntimeError, match=r"agents \[1\] are out"):
        PufferEnv(Cycles(out=[1])).reset()


def test_it_is_closed_with_its_environment():
    vector = Cycles()
    PufferEnv(vector).close()
    assert vector.is_closed
