"""Steps by hand of a transformed environment are those of tensordicts."""

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl_envs import (
    GymEnv,
    ParallelEnv,
    SerialEnv,
    TransformedEnv,
)
from rl_specs import Bounded
from rl_transforms import (
    Compose,
    InitTracker,
    ObservationNorm,
    RewardSum,
    StepCounter,
)


def test_steps_by_hand_read_the_root_that_they_are_given():
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(), RewardSum())
    root = env.rand_action(env.reset())
    assert env.step(root)["next", "step_count"].item() == 1
    root["step_count"] += 6
    assert env.step(root)["next", "step_count"].item() == 7
    sums = root.clone().set("episode_reward", torch.ones(1, requires_grad=True))
    assert env.step(sums)["next", "episode_reward"].requires_grad
    wide = root.clone().set("step_count", root["step_count"].to(torch.int32))
    with pytest.raises(TypeError, match="step_count"):
        env.step(wide)
    with pytest.raises(KeyError, match="step_count"):
        env.step(root.exclude("step_count"))


def test_results_of_the_environment_inside_are_checked_in_steps_by_hand():
    env = TransformedEnv(GymEnv("Pendulum-v1"), ObservationNorm(0.0, 1.0))
    root = env.rand_action(env.reset())
    env.step(root)
    env.base_env.observation_spec = Bounded(7.0, 8.0, (3,))
    with pytest.raises(ValueError, match="'observation' is outside its spec"):
        env.step(root)
    env.base_env.check_values = False
    assert env.step(root)["next", "observation"].shape == (3,)


class Twice(TransformedEnv):
    def _step(self, tensordict):
        return super()._step(tensordict).set("reward", torch.full((1,), 2.0))


def test_a_step_of_a_subclass_is_called_in_steps_by_hand_and_in_rollouts():
    env = Twice(GymEnv("CartPole-v1"), StepCounter())
    assert env.rand_step(env.reset())["next", "reward"].item() == 2
    assert (env.rollout(7)["next", "reward"] == 2).all()
    many = SerialEnv(2, lambda: Twice(GymEnv("CartPole-v1"), StepCounter()))
    assert (many.rollout(7)["next", "reward"] == 2).all()
    with ParallelEnv(1, lambda: Twice(GymEnv("CartPole-v1")), mp_start_method="fork") as env:
        assert (env.rollout(7)["next", "reward"] == 2).all()


@pytest.mark.parametrize("marked", [True, False])
def test_a_root_goes_on_with_its_own_counts(marked):
    batches = []
    for fast in (True, False):
        env = TransformedEnv(GymEnv("CartPole-v1"), Compose(InitTracker(), *counts()))
        env.native_rows = fast
        env.set_seed(5)
        first = env.rollout(4, policy=_right)
        root = env.maybe_reset(env.next_root(first[-1])).exclude("action")
        root["is_init"] = torch.tensor([marked])  # a cut that the environment knows nothing of
        act = TensorDictModule(lambda seen: torch.eye(2)[1].bool(), ["observation"], ["action"])
        batches.append(env.rollout(25, act, auto_reset=False, tensordict=root))
    one, other = batches
    assert one["step_count"][0].item() == 4
    assert one["is_init"][0].item() is marked
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert all(torch.equal(one[key], other[key]) for key in one.keys(True, True))


def counts():
    return StepCounter(), RewardSum()


def _right(root):
    return root.set("action", torch.tensor([False, True]))
