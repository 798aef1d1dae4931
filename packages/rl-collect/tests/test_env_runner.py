from __future__ import annotations

import pytest
import torch

from rl_collect import Collector
from rl_envs import GymEnv, GymVectorEnv, SerialEnv, TransformedEnv
from rl_envs.testing import EpisodeStepEnv
from rl_transforms import Compose, NextObservationDelta, RewardScaling, RewardSum


def scripted():
    return EpisodeStepEnv([(4, "terminated"), (7, "truncated")])


def pendulum():
    return GymEnv("Pendulum-v1")


def carts():
    return GymVectorEnv("CartPole-v1", 3, vectorization_mode="vector_entry_point")


@pytest.mark.parametrize("make", [scripted, pendulum, lambda: SerialEnv(2, scripted), carts])
def test_a_batch_begins_where_the_one_before_stopped_also_without_next_observations(make):
    def batches(env):
        torch.manual_seed(0)
        env.set_seed(0)
        collector = Collector(env, None, frames_per_batch=12)
        return [batch for batch, _ in zip(collector, range(3), strict=False)]

    change = Compose(NextObservationDelta(delta_dtype=torch.float32), RewardSum())
    changed = TransformedEnv(make(), change)
    for found, wanted in zip(batches(changed), batches(make()), strict=True):
        assert ("next", "observation") not in found.keys(True, True)
        assert ("delta", "observation") not in found.keys(True, True)
        assert torch.equal(found["observation"], wanted["observation"])


def test_rewards_are_scaled_once_in_batches_that_go_on():
    plain = Collector(GymEnv("CartPole-v1"), None, frames_per_batch=7, producer=1)
    change = Compose(RewardScaling(1.0, -3.0), RewardSum())
    scaled = TransformedEnv(GymEnv("CartPole-v1"), change)
    changed = Collector(scaled, None, frames_per_batch=7, producer=1)
    for collector in (plain, changed):
        torch.manual_seed(0)
        collector.set_seed(0)
    for _ in range(4):
        rows, wanted = changed.next(), plain.next()
        assert torch.equal(rows["next", "reward"], wanted["next", "reward"] * -3 + 1)
        assert torch.equal(rows["episode_reward"], -2.0 * rows["collector", "traj_step"][:, None])
