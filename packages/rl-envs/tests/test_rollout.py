import pytest
import torch

from rl_envs import RandomPolicy
from rl_envs.rollout import Request, truncate
from rl_envs.testing import CountingEnv, EpisodeStepEnv, GroupsEnv, MultiAgentEnv

ENDINGS = [(2, "terminated"), (3, "truncated")]


def test_a_rollout_stops_at_the_first_done_row():
    env = EpisodeStepEnv(ENDINGS, batch_size=(2,))
    assert env.rollout(9).shape == (2, 2)


def test_a_rollout_goes_on_through_resets():
    batch = EpisodeStepEnv(ENDINGS).rollout(7, break_when_any_done=False)
    episodes_and_steps = [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1]]
    assert batch["observation"].tolist() == episodes_and_steps
    assert batch["next", "observation"][:, 1].tolist() == [1, 2, 1, 2, 3, 1, 2]
    assert batch["next", "terminated"].flatten().nonzero().flatten().tolist() == [1, 6]
    assert batch["next", "truncated"].flatten().nonzero().flatten().tolist() == [4]
    assert not batch["done"].any()


def test_a_rollout_can_wait_until_all_are_done():
    env = EpisodeStepEnv(ENDINGS, batch_size=(2,))
    batch = env.rollout(9, break_when_any_done=False, break_when_all_done=True)
    assert batch.shape == (2, 3)


def test_groups_break_a_rollout_too():
    assert GroupsEnv({"first": 2, "second": 5}).rollout(9).shape == (2,)


def test_a_callback_sees_every_step():
    seen = []
    CountingEnv().rollout(3, callback=lambda env, step: seen.append(step["observation"].item()))
    assert seen == [0, 1, 2]


def test_set_truncated_marks_the_last_step_only():
    batch = CountingEnv(9).rollout(3, set_truncated=True)
    assert batch["next", "truncated"].flatten().tolist() == [False, False, True]
    assert batch["next", "done"].flatten().tolist() == [False, False, True]


def test_a_terminated_step_is_not_truncated():
    step = CountingEnv(1).rollout(1)
    assert not truncate(step, [()])["next", "truncated"].any()
    agents = truncate(MultiAgentEnv(3).rollout(1), [(), ("agents",)])
    assert agents["next", "agents", "truncated"].flatten().tolist() == [False, True, True]


def test_a_rollout_goes_on_from_a_root():
    env = EpisodeStepEnv([(9, "terminated")])
    root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
    batch = env.rollout(2, auto_reset=False, tensordict=root)
    assert batch["observation"].tolist() == [[0, 1], [0, 2]]


def test_without_reset_there_must_be_a_root():
    with pytest.raises(RuntimeError, match=r"pass tensordict=env\.reset\(\)"):
        CountingEnv().rollout(3, auto_reset=False)


def test_requests_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="at least 1: got 0"):
        CountingEnv().rollout(0)
    with pytest.raises(ValueError, match="break_when_any_done=False"):
        Request(3, break_when_any_done=True, break_when_all_done=True)


def test_a_rollout_has_no_gradients():
    weight = torch.ones(1, requires_grad=True)
    env = CountingEnv()

    def policy(root):
        root["score"] = root["observation"] * weight
        return env.rand_action(root)

    assert not env.rollout(3, policy)["score"].requires_grad


def test_a_policy_may_return_nothing():
    env = CountingEnv()

    def act(root):
        root.update(env.rand_action())

    assert env.rollout(3, act).shape == (3,)


def test_a_root_that_names_a_device_is_welcome():
    env = CountingEnv()
    root = env.reset().to("cpu")
    policy = RandomPolicy(env.action_spec)
    assert env.rollout(3, policy, auto_reset=False, tensordict=root).shape == (3,)
    assert root.device == torch.device("cpu")
    assert "action" not in root  # what the policy wrote went to a copy
