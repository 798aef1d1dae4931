"""Agents under one key, with rewards and done flags of their own, through everything around."""

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl_envs import ParallelEnv, SerialEnv, TransformedEnv, check_env_specs
from rl_envs.testing import MultiAgentEnv
from rl_specs import Binary, Composite
from rl_transforms import Compose, GroupDone, InitTracker, RewardSum, StepCounter

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


def test_groups_step_alike_in_turn_and_in_processes():
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


class Team(MultiAgentEnv):
    """Agents with rewards of their own, which end when the root says so."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        flag = Binary(shape=(*self.batch_size, 1), dtype=torch.bool)
        self.done_spec = Composite(terminated=flag, shape=self.batch_size)

    def _finish(self, after, terminated, truncated):
        super()._finish(after, terminated, truncated)
        del after["agents", "terminated"]


@pytest.mark.parametrize("kind", ["alone", "rows", "serial", "inside"])
def test_a_group_without_flags_can_be_given_those_of_the_root(kind):
    def make(*shape):
        return Team(3, [(2, "terminated"), (3, "truncated")], *shape)

    def given(env):
        return TransformedEnv(env, GroupDone("agents"), InitTracker(), StepCounter())

    env = {
        "alone": lambda: given(make()),
        "rows": lambda: given(make((2,))),
        "serial": lambda: given(SerialEnv(2, make)),
        "inside": lambda: SerialEnv(2, lambda: given(make())),
    }[kind]()
    check_env_specs(env, num_steps=5)
    batch = env.rollout(5, break_when_any_done=False)
    for name in ("done", "terminated", "truncated"):
        flags = batch["next", name].unsqueeze(-2)
        assert torch.equal(batch["next", "agents", name], flags.expand(*batch.shape, 3, 1))
    assert torch.equal(
        batch["agents", "is_init"], batch["is_init"].unsqueeze(-2).expand(*batch.shape, 3, 1)
    )
    marked = env.rollout(1, set_truncated=True)
    assert marked["next", "agents", "truncated"].all()
