from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_specs import Bounded, Composite, Unbounded
from rl_transforms import BinarizeReward, RewardClipping, RewardScaling, SignTransform

REWARD = torch.tensor([[-3.0], [0.0], [0.25], [8.0]])


def rewards(change, value=REWARD):
    return change(TensorDict({"next": {"reward": value}}, [4]))["next", "reward"].flatten().tolist()


def test_rewards_are_scaled_clipped_and_signed():
    assert rewards(RewardScaling(1.0, 4.0)) == [-11, 1, 2, 33]
    assert rewards(RewardScaling(1.0, 4.0, standard_normal=True)) == [-1, -0.25, -0.1875, 1.75]
    assert rewards(RewardClipping(-1, 1)) == [-1, 0, 0.25, 1]
    assert rewards(RewardClipping(clamp_max=0.25)) == [-3, 0, 0.25, 0.25]
    assert rewards(BinarizeReward()) == [0, 0, 1, 1]
    assert rewards(SignTransform()) == [-1, 0, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_scalar_arguments_keep_the_dtype(dtype):
    batch = TensorDict({"next": {"reward": REWARD.to(dtype)}}, [4])
    assert RewardScaling(0.5, 2.0)(batch)["next", "reward"].dtype == dtype


def test_scale_can_differ_between_columns():
    scaled = RewardScaling(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    batch = TensorDict({"next": {"reward": REWARD.expand(4, 2)}}, [4])
    assert scaled(batch)["next", "reward"][-1].tolist() == [8, 17]
    assert set(scaled.state_dict()) == {"loc", "scale"}


def test_step_changes_rewards_like_forward():
    after = TensorDict({"reward": REWARD}, [4])
    for change in (RewardScaling(1.0, -2.0), RewardClipping(0, 1), SignTransform()):
        step = change.step(TensorDict({}, [4]), after)["reward"]
        assert step.flatten().tolist() == rewards(change)


def test_specs_describe_changed_rewards():
    spec = Composite(reward=Bounded(-1, 3, (4, 1)), other=Unbounded((4, 1)), shape=(4,))
    scaled = RewardScaling(1.0, -2.0).transform_reward_spec(spec)["reward"]
    assert (scaled.space.low.unique(), scaled.space.high.unique()) == (-5, 3)
    clipped = RewardClipping(0, 9).transform_reward_spec(spec)["reward"]
    assert (clipped.space.low.unique(), clipped.space.high.unique()) == (0, 3)
    other = SignTransform(["other"]).transform_reward_spec(spec)
    assert other["other"] == Bounded(-1, 1, (4, 1))
    assert other["reward"] == spec["reward"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int16, torch.int64])
@pytest.mark.parametrize("limits", [(-2, 3), (None, 3), (-2, None)])
def test_clipping_bounds_the_spec_of_rewards_without_bounds(dtype, limits):
    spec = Composite(reward=Unbounded((4, 1), dtype=dtype), shape=(4,))
    clipping = RewardClipping(*limits)
    clipped = clipping.transform_reward_spec(spec)["reward"]
    assert isinstance(clipped, Bounded)
    for value in (-100, 0, 100):
        reward = clipping.apply_leaf(torch.full((4, 1), value, dtype=dtype))
        assert clipped.is_in(reward)
    low, high = limits
    assert low is None or not clipped.is_in(torch.full((4, 1), low - 1, dtype=dtype))
    assert high is None or not clipped.is_in(torch.full((4, 1), high + 1, dtype=dtype))


def test_zero_scale_and_crossed_limits_are_refused():
    with pytest.raises(ValueError, match="scale must not be 0"):
        RewardScaling(0.0, torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="clamp_min <= clamp_max"):
        RewardClipping()
    with pytest.raises(ValueError, match="least: 2, 1"):
        RewardClipping(2, 1)
