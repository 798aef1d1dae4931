"""The count of moves: the holder of a root can tell whether it is out of date."""

import contextlib

import pytest

from rl_envs import GymEnv, GymVectorEnv, ParallelEnv, Pendulums, SerialEnv, TransformedEnv
from rl_envs.testing import CountingEnv
from rl_transforms import StepCounter


def cart_pole():
    return GymEnv("CartPole-v1")


ENVIRONMENTS = {
    "counting": CountingEnv,
    "gym": cart_pole,
    "serial": lambda: SerialEnv(2, cart_pole),
    "parallel": lambda: ParallelEnv(2, cart_pole, mp_start_method="fork"),
    "parallel, by messages": lambda: ParallelEnv(2, CountingEnv, mp_start_method="fork"),
    "transformed": lambda: TransformedEnv(cart_pole(), StepCounter()),
    "vector": lambda: GymVectorEnv("CartPole-v1", 2),
    "pendulums": lambda: Pendulums(2),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_moves_count_each_reset_and_step_and_nothing_else(name):
    env = ENVIRONMENTS[name]()
    with contextlib.closing(env):
        root, at_reset = env.reset(), env.moves
        env.step(env.rand_action(root))
        at_step = env.moves
        env.rollout(3)
        at_rollout = env.moves
        env.set_seed(0)
        env.fake_tensordict()
        env.rand_action(root)
        assert 0 < at_reset < at_step < at_rollout == env.moves


def test_a_state_that_is_loaded_is_a_move():
    env = CountingEnv()
    env.reset()
    state, before = env.state_dict(), env.moves
    env.load_state_dict(state)
    assert env.moves > before


def test_environments_inside_count_for_those_around_them():
    inner = cart_pole()
    env = TransformedEnv(SerialEnv(2, [lambda: inner, cart_pole]), StepCounter())
    env.reset()
    before, inside = env.moves, inner.moves
    inner.reset()
    assert env.moves > before
    env.rollout(2)
    assert inner.moves > inside + 1
