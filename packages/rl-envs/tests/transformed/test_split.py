"""What of a transformed environment steps, and what waits for finished rows."""

import pytest
import torch

from rl_envs import (
    GymEnv,
    TransformedEnv,
)
from rl_specs import Unbounded
from rl_transforms import (
    Compose,
    InitTracker,
    RewardSum,
    StepCounter,
    Transform,
)


class Shift(Transform):
    def apply_leaf(self, value):
        return value + 10

    def leaf_spec(self, spec):
        return Unbounded(spec.shape, dtype=spec.dtype)


class Late(Shift):
    online = False

    def rows(self, batch, last=None):
        return self.forward(batch)


def test_deferred_transforms_run_on_finished_rows():
    env = TransformedEnv(
        GymEnv("CartPole-v1"), Compose(InitTracker(), StepCounter(), RewardSum(), Late(["reward"]))
    )
    stepping, finishing = env.split([("is_init",)])
    assert [type(one) for one in stepping.transforms] == [InitTracker]
    assert [type(one) for one in finishing] == [StepCounter, RewardSum, Late]
    assert env.split([("is_init",), ("observation",)])[0] is stepping
    assert env.split([("observation",)])[0] is env.base_env
    batch = env.rollout(30, break_when_any_done=False)
    assert (batch["next", "reward"] == 11).all()  # shifted once
    assert torch.equal(batch["next", "episode_reward"].long(), batch["step_count"] + 1)
    assert torch.equal(batch["is_init"], batch["step_count"] == 0)


@pytest.mark.parametrize("in_keys", [None, [("step_count",)], [("observation",)]])
def test_transforms_that_a_policy_may_read_are_not_deferred(in_keys):
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(), Late(["observation"])))
    stepping, finishing = env.split(in_keys)
    assert stepping is env
    assert len(finishing) == 0


def test_inserted_transforms_step_or_are_deferred_too():
    env = TransformedEnv(GymEnv("CartPole-v1"), InitTracker())
    assert env.split([])[0] is env.base_env
    env.append_transform(RewardSum())
    assert [type(one) for one in env.split([])[1]] == [InitTracker, RewardSum]
    env.insert_transform(1, Shift(["observation"]))
    stepping, finishing = env.split([])
    assert [type(one) for one in stepping.transforms] == [InitTracker, Shift]
    assert [type(one) for one in finishing] == [RewardSum]
