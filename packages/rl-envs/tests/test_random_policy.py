import torch
from tensordict import TensorDict

from rl_envs import RandomPolicy
from rl_envs.testing import CountingEnv, NestedEnv


def test_actions_lie_in_their_spec():
    for env in (CountingEnv(batch_size=(3,)), NestedEnv(batch_size=(3,))):
        batch = env.rollout(4, RandomPolicy(env.full_action_spec))
        assert env.full_action_spec.is_in(batch.select(*env.action_keys)[:, 0])


def test_a_spec_without_batch_serves_any_batch():
    env = CountingEnv()
    made = RandomPolicy(env.action_spec)(TensorDict(batch_size=[7]))
    assert made["action"].shape == (7, 2)


def test_a_spec_with_batch_serves_that_batch():
    policy = RandomPolicy(CountingEnv(batch_size=(3,)).action_spec, ("group", "action"))
    assert policy(TensorDict(batch_size=[3]))["group", "action"].shape == (3, 2)
    assert policy(TensorDict(batch_size=[5, 3]))["group", "action"].shape == (5, 3, 2)
    assert policy.out_keys == [("group", "action")]


def test_draws_follow_torchs_seed():
    policy = RandomPolicy(CountingEnv().action_spec)
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(policy(TensorDict(batch_size=[20]))["action"])
    assert torch.equal(*draws)
