"""Frames whose actions are random."""

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential

from rl_collect import Collector
from rl_envs import GymEnv, SerialEnv
from rl_envs.testing import CountingEnv


def test_random_frames_take_random_actions_and_keep_what_else_the_policy_writes(collected):
    policy = TensorDictModule(
        lambda obs: (torch.tensor([True, False]), obs[..., 0], obs[..., 0] + 1),
        ["observation"],
        ["action", "action_log_prob", "value"],
    )
    batches = collected(
        CountingEnv(), policy, frames_per_batch=50, total_frames=100, init_random_frames=50
    )
    assert set(batches[0].keys(True, True)) == set(batches[1].keys(True, True))
    assert 0 < batches[0]["action"][:, 1].sum() < 50
    assert not batches[1]["action"][:, 1].any()
    assert batches[0]["action_log_prob"].isnan().all()
    assert (batches[0]["value"] == batches[0]["observation"][:, 0] + 1).all()


def test_random_frames_follow_a_part_of_the_policy_that_was_replaced():
    def part(value):
        return TensorDictModule(
            lambda obs: (torch.tensor([True, False]), torch.full_like(obs[..., 0], value)),
            ["observation"],
            ["action", "value"],
        )

    policy = TensorDictSequential(part(1.0))
    collector = Collector(
        CountingEnv(), policy, frames_per_batch=5, total_frames=20, init_random_frames=20
    )
    assert collector.next()["value"].eq(1).all()
    policy.module[0] = part(2.0)
    assert collector.next()["value"].eq(2).all()
    collector.shutdown()


@pytest.mark.parametrize("make", [CountingEnv, lambda: GymEnv("CartPole-v1")], ids=["own", "gym"])
@pytest.mark.parametrize("is_hooked", [False, True])
def test_random_frames_follow_a_part_that_writes_other_entries(make, is_hooked):
    def part(size, key):
        layer = torch.nn.Linear(env.observation_spec["observation"].shape[-1], size)
        return TensorDictModule(layer, ["observation"], [key])

    env = make()
    act = TensorDictModule(lambda _: torch.tensor([True, False]), ["observation"], ["action"])
    policy = TensorDictSequential(part(2, "former"), act)
    collector = Collector(env, policy, frames_per_batch=5, total_frames=20, init_random_frames=15)
    assert collector.next()["former"].shape == (5, 2)
    policy.module[0] = part(3, "other")
    if is_hooked:
        policy.module[0].register_forward_hook(lambda *_: None)
    for _ in range(3):  # the last one is the policy's
        assert collector.next()["other"].shape == (5, 3)
    collector.shutdown()


@pytest.mark.parametrize(
    "make",
    [lambda: SerialEnv(3, lambda: GymEnv("CartPole-v1")), lambda: GymEnv("CartPole-v1")],
    ids=["cart_poles", "cart_pole"],
)
def test_the_random_step_of_an_environment_is_a_policy_of_random_actions(make, collected):
    env = make()
    found = collected(env, env.rand_step, frames_per_batch=30, total_frames=60)
    expected = collected(make(), None, frames_per_batch=30, total_frames=60)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one["observation"], other["observation"])
        assert torch.equal(one["action"], other["action"])
