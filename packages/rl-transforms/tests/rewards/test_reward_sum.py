from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout.testing import EndKind, environments
from rl_specs import Composite, Unbounded
from rl_transforms import RewardSum


def reward(value, *shape):
    return torch.full(shape or (3, 1), float(value))


def test_sum_starts_at_a_reset_and_grows_with_each_step():
    total = RewardSum()
    root = total.reset(TensorDict({}, [3]))
    first = total.step(root, TensorDict({"reward": reward(2)}, [3]))
    second = total.step(first, TensorDict({"reward": reward(5)}, [3]))
    assert root["episode_reward"].flatten().tolist() == [0, 0, 0]
    assert second["episode_reward"].flatten().tolist() == [7, 7, 7]
    assert first["episode_reward"].flatten().tolist() == [2, 2, 2]


def test_partial_reset_restarts_masked_rows_only():
    root = TensorDict({"episode_reward": reward(4)}, [3])
    again = RewardSum().reset(root, torch.tensor([False, True, False]))
    assert again["episode_reward"].flatten().tolist() == [4, 0, 4]


def test_nested_rewards_have_sums_in_their_group():
    total = RewardSum([("agents", "reward"), "cost"])
    assert total.out_keys == [("agents", "episode_reward"), "episode_cost"]
    total.transform_reward_spec(Composite(agents={"reward": Unbounded((3, 2, 1))}, shape=(3,)))
    root = total.reset(TensorDict({}, [3]))
    assert root["agents", "episode_reward"].shape == (3, 2, 1)
    after = TensorDict({"agents": {"reward": reward(3, 3, 2, 1)}, "cost": reward(1)}, [3])
    assert total.step(root, after)["agents", "episode_reward"].unique().item() == 3


def test_nested_reward_of_unknown_shape_starts_at_its_first_step():
    total = RewardSum([("agents", "reward")])
    after = TensorDict({"agents": {"reward": reward(3, 3, 2, 1)}}, [3])
    summed = total.step(total.reset(TensorDict({}, [3])), after)["agents", "episode_reward"]
    assert summed.unique().item() == 3
    assert summed is not after["agents", "reward"]


def test_observation_spec_has_the_sums():
    total = RewardSum()
    wide = Composite(reward=Unbounded((3, 2), dtype=torch.float64), shape=(3,))
    assert total.transform_reward_spec(wide) is wide
    spec = total.transform_observation_spec(Composite(shape=(3,)))["episode_reward"]
    assert spec.shape == (3, 2)
    assert spec.dtype == torch.float64


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 10))
def test_finished_rows_get_the_sums_of_every_step(lengths, cut):
    batch = environments(3, 11, lengths, [EndKind.TERMINATED])
    total = RewardSum()
    first = total.rows(batch[:, :cut])
    rows = torch.cat([first, total.rows(batch[:, cut:], first[:, -1])], 1)
    steps = batch["collector", "traj_step"].unsqueeze(-1)
    # the reward of step s is s + 1, so s steps were worth s (s + 1) / 2
    assert torch.equal(rows["episode_reward"], steps * (steps + 1) / 2)
    assert torch.equal(rows["next", "episode_reward"], (steps + 1) * (steps + 2) / 2)


def test_infinite_reward_stays_in_its_trajectory():
    batch = environments(1, 6, [3], [EndKind.TERMINATED])
    batch["next", "reward"][0, 1] = float("inf")
    sums = RewardSum().rows(batch)["next", "episode_reward"].flatten()
    assert sums.tolist() == [1, float("inf"), float("inf"), 1, 3, 6]


def test_rewards_of_agents_follow_the_done_flag_of_the_environment():
    batch = environments(3, 5, [2], [EndKind.TERMINATED])
    batch["next", "agents", "reward"] = torch.ones(3, 5, 2, 1)
    sums = RewardSum([("agents", "reward")]).rows(batch)["next", "agents", "episode_reward"]
    assert sums[:, :, 1, 0].tolist() == [[1, 2, 1, 2, 1]] * 3


def test_forward_returns_samples_unchanged():
    batch = environments(3, 5, [2], [EndKind.CUT])
    assert RewardSum()(batch) is batch


def test_missing_rewards_and_sums_are_named():
    with pytest.raises(KeyError, match="'reward' is missing"):
        RewardSum().step(TensorDict({}, [3]), TensorDict({}, [3]))
    with pytest.raises(KeyError, match=r"'episode_reward' is missing.*Call reset first"):
        RewardSum().step(TensorDict({}, [3]), TensorDict({"reward": reward(1)}, [3]))
    with pytest.raises(KeyError, match="'gain'\\) is missing"):
        RewardSum(["gain"]).rows(environments(3, 5, [2], [EndKind.CUT]))
    with pytest.raises(TypeError, match="list of keys"):
        RewardSum("reward")


def test_a_reward_that_the_environment_lacks_is_refused_with_those_that_it_has():
    spec = Composite(agents=Composite(reward=Unbounded((3, 1)), shape=(3,)))
    for in_keys in (None, [("agent", "reward")]):  # the default, and a typing error
        total = RewardSum(in_keys)
        total.transform_reward_spec(spec)
        with pytest.raises(KeyError, match=r"no reward .*: name \('agents', 'reward'\)"):
            total.transform_observation_spec(Composite())


def test_a_cost_among_the_observations_is_summed():
    total = RewardSum(["cost"])
    total.transform_reward_spec(Composite(reward=Unbounded((1,))))
    assert "episode_cost" in total.transform_observation_spec(Composite(cost=Unbounded((1,))))


def stepped(batch, dtype):
    """The sums of an environment that adds at every step."""
    total = RewardSum()
    total.transform_reward_spec(Composite(reward=Unbounded((3, 2), dtype=dtype), shape=(3,)))
    sums, root = [], total.reset(TensorDict({}, [3]))
    for t in range(batch.shape[1]):
        root = total.step(root, batch["next"][:, t])
        sums.append(root["episode_reward"])
        root = total.reset(root, batch["next", "done"][:, t, 0])
    return torch.stack(sums, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@settings(max_examples=15)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.sets(st.integers(1, 40)), st.data())
def test_sums_have_the_same_bits_for_any_batch_cuts(dtype, lengths, cuts, data):
    batch = environments(3, 41, lengths, [EndKind.TERMINATED, EndKind.TRUNCATED])
    noise = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    rewards = torch.randn(3, 41, 2, generator=noise, dtype=torch.float64) * 10
    batch["next", "reward"] = torch.where(rewards > 12, -0.0, rewards).to(dtype)
    last, pieces = None, []
    for piece in batch.tensor_split(sorted(cuts), 1):
        pieces.append(RewardSum().rows(piece, last))
        last = pieces[-1][:, -1]
    made, whole = torch.cat(pieces, 1), RewardSum().rows(batch)
    wanted = stepped(batch, dtype)
    for found in (made, whole):
        sums = found["next", "episode_reward"]
        assert sums.dtype == dtype
        assert torch.equal(sums, wanted)
        assert torch.equal(sums.signbit(), wanted.signbit())
    assert torch.equal(made["episode_reward"], whole["episode_reward"])


def test_sums_propagate_gradients_of_rewards():
    batch = environments(3, 5, [2], [EndKind.TERMINATED])
    batch["next", "reward"] = weights = torch.ones(3, 5, 1, requires_grad=True)
    RewardSum().rows(batch)["next", "episode_reward"].sum().backward()
    assert weights.grad[0, :, 0].tolist() == [2, 1, 2, 1, 1]
