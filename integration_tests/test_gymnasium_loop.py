"""A loop over a gymnasium environment that stores dicts, up to a loss."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import gymnasium
import pytest
import torch
from tensordict.nn import TensorDictModule

from rl_layout import check_layout
from rl_replay import LazyTensorStorage, RandomSampler, SliceSampler, TensorDictReplayBuffer
from rl_value import DQNLoss


def filled(sampler, steps=300):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(250), sampler=sampler, batch_size=24)
    env = gymnasium.make("CartPole-v1")
    env.action_space.seed(1)
    observation, _ = env.reset(seed=0)
    for _ in range(steps):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
        following = {"observation": after, "reward": reward}
        following |= {"terminated": terminated, "truncated": truncated, "done": done}
        buffer.add({"observation": observation, "action": action, "next": following})
        observation = env.reset()[0] if done else after
    return buffer


@pytest.mark.parametrize("sampler", [RandomSampler, lambda: SliceSampler(slice_len=6)])
def test_samples_of_dicts_go_into_a_loss_as_they_are(sampler):
    buffer = filled(sampler())
    sample = buffer.sample()
    assert not check_layout(buffer[:]).errors
    assert not check_layout(sample).errors
    net = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["action_value"])
    loss = DQNLoss(net, action_space="categorical", delay_value=False)
    loss(sample)["loss"].backward()
    assert net.module.weight.grad.isfinite().all()
    assert net.module.weight.grad.abs().sum() > 0


def test_slices_of_dicts_do_not_cross_episodes():
    buffer = filled(SliceSampler(slice_len=6))
    for _ in range(20):
        sample = buffer.sample()
        slices = sample["collector", "slice_ids"]
        inner = slices[1:] == slices[:-1]
        assert inner.any()
        assert not sample["next", "done"].squeeze(-1)[:-1][inner].any()
        follows = sample["next", "observation"][:-1] == sample["observation"][1:]
        assert follows[inner].all()
