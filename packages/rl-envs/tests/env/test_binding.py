import numpy as np
import pytest
import torch

from rl_envs import GymEnv, SerialEnv
from rl_envs.env.binding import RowBinding
from rl_envs.rollouts.columns import Columns
from rl_envs.testing import EpisodeStepEnv

ENDINGS = [(2, "terminated"), (3, "truncated")]


def play(env, num_steps, binding=None):
    """Step through columns by the binding, whose room for roots is one step more."""
    root, after = Columns(env.batch_size, num_steps + 1), Columns(env.batch_size, num_steps)
    root.add_leaves([*env.layout.shown, *env.layout.action])
    after.add_leaves(env.layout.after)
    torch.manual_seed(0)
    for key, spec in env.layout.action:
        actions = spec.rand((num_steps + 1,)).movedim(0, len(env.batch_size))
        root.tensors[key].copy_(actions)
    bound = (binding or env.bind)(root.arrays, after.arrays)
    bound.start()
    for t in range(num_steps):
        assert bound.step(t) == bool(after.tensors["done",].select(-2, t).any())
        bound.advance(t)
    return root.tensors, after.tensors


def test_columns_hold_a_rollout():
    env = EpisodeStepEnv(ENDINGS, batch_size=(2,))
    root, after = play(env, 6)
    slow = EpisodeStepEnv(ENDINGS, batch_size=(2,)).rollout(6, break_when_any_done=False)
    assert torch.equal(root["observation",][:, :6], slow["observation"])
    assert torch.equal(after["observation",], slow["next", "observation"])
    assert torch.equal(after["truncated",], slow["next", "truncated"])


def test_columns_may_have_room_for_the_next_root():
    root, _ = play(EpisodeStepEnv([(3, "terminated")]), 3)
    assert root["observation",][3].tolist() == [1, 0]


@pytest.mark.parametrize("number", [0, 3])
def test_an_environments_own_binding_does_what_rows_do(number):
    def make():
        env = GymEnv("CartPole-v1", max_episode_steps=7)
        if number:
            env = SerialEnv(number, lambda: GymEnv("CartPole-v1", max_episode_steps=7))
        env.set_seed(3)
        return env

    env = make()
    fast, slow = play(make(), 20), play(env, 20, lambda r, a: RowBinding(env, r, a))
    for one, other in zip(fast, slow, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_entries_without_a_column_are_dropped():
    env = GymEnv("CartPole-v1")
    done = np.zeros((3, 1), bool)
    bound = env.bind({("action",): np.eye(2)[[0, 1, 0]] > 0}, {("done",): done})
    bound.start()
    assert not bound.step(0)
