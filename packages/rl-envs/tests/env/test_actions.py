"""Actions that come in another dtype than their spec, and actions that are no choice of it."""

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch.nn.functional import one_hot

from rl_envs import GymEnv, GymVectorEnv, ParallelEnv, Pendulums, SerialEnv
from rl_envs.testing import CountingEnv

KINDS = ["numbers", "serial", "parallel", "vector", "plain"]


def make(kind):
    """Environments whose rollouts play in place, and one whose steps are tensordicts."""
    if kind == "plain":
        return CountingEnv()
    if kind == "vector":
        return GymVectorEnv("CartPole-v1", 3)
    if kind == "numbers":
        return GymEnv("CartPole-v1")
    return (SerialEnv if kind == "serial" else ParallelEnv)(2, lambda: GymEnv("CartPole-v1"))


def policy(write):
    return TensorDictModule(lambda seen: write(seen.shape[:-1]), ["observation"], ["action"])


@pytest.mark.parametrize("kind", KINDS)
def test_choices_of_one_hot_are_cast(kind):
    env = make(kind)
    act = policy(lambda batch: one_hot(torch.ones(batch, dtype=torch.int64), 2))
    rows = env.rollout(4, act)
    env.close()
    assert rows["action"].dtype == torch.bool
    assert rows["action"].tolist() == torch.tensor([False, True]).expand_as(rows["action"]).tolist()


def test_a_step_takes_an_exact_cast_and_leaves_the_root_alone():
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    root = env.reset().set("action", torch.tensor(1, dtype=torch.int32))
    assert env.step(root)["action"].dtype == torch.int64
    assert root["action"].dtype == torch.int32


def test_every_step_is_cast_by_its_values():
    counts = iter(range(1, 9))
    act = policy(lambda batch: torch.tensor([0, next(counts)]))
    with pytest.raises(TypeError, match=r"'action': expected dtype torch.bool, .*cannot hold"):
        GymEnv("CartPole-v1").rollout(4, act)


def test_device_steps_are_cast_at_every_step():
    env = Pendulums(3)
    rows = env.rollout(4, policy(lambda batch: torch.ones(*batch, 1, dtype=torch.int64)))
    assert rows["action"].dtype == torch.float32
    with pytest.raises(TypeError, match="cannot hold"):
        env.rollout(4, policy(lambda batch: torch.full((*batch, 1), 0.1, dtype=torch.float64)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chosen", [[True, True], [False, False]], ids=["both", "none"])
def test_two_choices_at_once_are_refused(kind, chosen):
    env = make(kind)
    with pytest.raises(ValueError, match="'action' is no choice of its spec"):
        env.rollout(4, policy(lambda batch: torch.tensor(chosen).expand(*batch, 2).clone()))
    env.close()


def test_a_number_beyond_the_choices_is_refused_by_name():
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    with pytest.raises(ValueError, match=r"'action' is no choice of its spec.*got 7"):
        env.step(env.reset().set("action", torch.tensor(7)))
    env.check_values = False
    with pytest.raises(AssertionError):
        env.step(env.reset().set("action", torch.tensor(7)))


def test_choices_that_a_mask_forbids_now_were_allowed_before():
    env = CountingEnv()
    env.action_spec.update_mask(torch.tensor([True, False]))
    rows = env.rollout(2, policy(lambda batch: torch.tensor([False, True])))
    assert rows["action"].shape == (2, 2)
