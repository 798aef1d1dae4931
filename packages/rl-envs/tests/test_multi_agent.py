"""Agents under one key, with rewards and done flags of their own, through everything around."""

import torch
from tensordict.nn import TensorDictModule

from rl_envs import ParallelEnv, SerialEnv, TransformedEnv
from rl_envs.testing import MultiAgentEnv
from rl_transforms import Compose, InitTracker, RewardSum, StepCounter

AGENTS = 3
# agent a of an episode is done from its step a + 1 on; the episode ends for all of them
STEP = [1, 2, 1, 2, 3, 4, 1, 2]
DONE = [False, True, False, False, False, True, False, True]


def make():
    return MultiAgentEnv(AGENTS, [(2, "terminated"), (4, "truncated")])


def assert_played(batch):
    after, agents = batch["next"], batch["next", "agents"]
    assert batch["agents", "action"].shape == (*batch.shape, AGENTS, 3)
    assert batch["agents"].shape == (*batch.shape, AGENTS)
    for name in ("reward", "done", "terminated", "truncated"):
        assert agents[name].shape == (*batch.shape, AGENTS, 1)
        assert after.get("done").shape == (*batch.shape, 1)
    for row in range(batch.shape[0]):
        assert after["done"][row].flatten().tolist() == DONE
        assert agents["observation"][row, :, 0, 0].tolist() == STEP
        assert agents["observation"][row, 0, :, 1].tolist() == [0, 1, 2]
        out = [[step > agent for agent in range(AGENTS)] for step in STEP]
        assert agents["terminated"][row].squeeze(-1).tolist() == out
        # flags of agents are cleared where the episode begins anew
        before = [
            [False] * AGENTS if step == 1 else [step - 1 > a for a in range(3)] for step in STEP
        ]
        assert batch["agents", "done"][row].squeeze(-1).tolist() == before


def test_in_turn_and_in_processes():
    with ParallelEnv(2, make, mp_start_method="fork") as parallel:
        for env in (SerialEnv(2, make), parallel):
            assert_played(env.rollout(8, break_when_any_done=False))


def test_a_policy_acts_for_each_agent():
    hot = torch.eye(3, dtype=torch.bool)
    policy = TensorDictModule(
        lambda seen: hot[seen[..., 1].long()], [("agents", "observation")], [("agents", "action")]
    )
    batch = SerialEnv(2, make).rollout(8, policy, break_when_any_done=False)
    assert_played(batch)
    assert torch.equal(batch["agents", "action"], hot.expand(2, 8, AGENTS, 3))


def test_transforms_count_and_sum_for_each_agent():
    around = Compose(InitTracker(), StepCounter(), RewardSum(in_keys=[("agents", "reward")]))
    batch = TransformedEnv(SerialEnv(2, make), around).rollout(8, break_when_any_done=False)
    assert_played(batch)
    for row in range(2):
        assert batch["is_init"][row].flatten().tolist() == [step == 1 for step in STEP]
        assert batch["next", "step_count"][row].flatten().tolist() == STEP
        sums = batch["next", "agents", "episode_reward"][row].squeeze(-1)
        assert sums.tolist() == [[step] * AGENTS for step in STEP]
