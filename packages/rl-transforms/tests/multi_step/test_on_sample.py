from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorData, TensorDict

from rl_layout import Segments, keys
from rl_layout.testing import EndKind, environments, flat_batches, trajectories
from rl_transforms import MultiStep, discounted_sums, multi_step, reference

GAMMAS = st.sampled_from([0.5, 0.9, 1.0])


def same(one, other):
    names = set(one.keys(True, True))
    assert names == set(other.keys(True, True))
    for name in names:
        torch.testing.assert_close(one[name], other[name], msg=str(name))


def noisy(batch):
    return batch.set(keys.NEXT_REWARD, torch.randn(batch[keys.NEXT_REWARD].shape))


@given(flat_batches(), st.integers(1, 7), GAMMAS)
def test_multi_step_equals_the_reference(batch, n_steps, gamma):
    batch = noisy(batch)
    same(multi_step(batch, gamma, n_steps), reference.multi_step(batch, gamma, n_steps))


@given(st.integers(1, 7), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_environments_are_extended_separately(n_steps, lengths):
    batch = noisy(environments(3, 8, lengths, [EndKind.TERMINATED, EndKind.TRUNCATED]))
    made = multi_step(batch, 0.9, n_steps)
    assert made.names == [None, "time"]
    for env in range(3):
        same(made[env], reference.multi_step(batch[env], 0.9, n_steps))


def test_observation_and_flags_move_together():
    made = multi_step(trajectories([4], EndKind.TRUNCATED), 0.5, 3)
    # the step that row t reaches is min(t + 3, 4), and only step 4 is truncated
    assert made["next", "observation"][:, 1].tolist() == [3, 4, 4, 4]
    assert made["next", "truncated"].flatten().tolist() == [False, True, True, True]
    assert made["next", "done"].flatten().tolist() == [False, True, True, True]
    assert not made["next", "terminated"].any()
    assert made["next", "steps_to_next_obs"].flatten().tolist() == [3, 3, 2, 1]
    # 1 + 2/2 + 3/4, 2 + 3/2 + 4/4, 3 + 4/2, 4
    assert made["next", "reward"].flatten().tolist() == [2.75, 4.5, 5, 4]
    assert made["next", "original_reward"].flatten().tolist() == [1, 2, 3, 4]


def test_target_never_passes_a_termination():
    batch = trajectories([4, 3, 2])
    made = multi_step(batch, 0.9, 3)
    values = torch.full((9, 1), 1000.0)  # of every next observation
    alive = (~made["next", "terminated"]).float()
    target = made["next", "reward"] + 0.9 ** made["next", "steps_to_next_obs"] * alive * values
    ends = [3, 3, 3, 3, 6, 6, 6, 8, 8]
    last = torch.tensor(ends) - torch.arange(9)
    assert torch.equal(target.flatten() < 100, last < 3)


def test_cut_shortens_the_span_of_earlier_rows():
    made = multi_step(trajectories([4], EndKind.CUT), 0.5, 3)
    assert made["next", "steps_to_next_obs"].flatten().tolist() == [3, 3, 2, 1]
    assert not made["next", "done"].any()


@given(flat_batches(), st.integers(1, 6))
def test_trajectory_boundaries_are_preserved(batch, n_steps):
    made = multi_step(batch, 0.9, n_steps)
    before, after = Segments.of(batch), Segments.of(made)
    assert torch.equal(before.starts, after.starts)
    assert torch.equal(before.kinds, after.kinds)


def test_one_step_adds_only_the_new_keys():
    batch = trajectories([3, 2])
    made = multi_step(batch, 0.9, 1)
    new = [("next", "original_reward"), ("next", "steps_to_next_obs")]
    same(made.exclude(*new), batch)
    assert made[new[1]].unique().item() == 1


def test_multi_step_does_not_change_its_input():
    batch = trajectories([3, 2])
    before = batch.clone()
    multi_step(batch, 0.9, 3)
    same(batch, before)


def test_rewards_are_summed_separately_by_key():
    batch = trajectories([3])
    batch["next", "agents", "reward"] = torch.ones(3, 2, 1)
    batch["next", "cost"] = torch.full((3, 1), 4.0)
    made = MultiStep(0.5, 2, reward_keys=["reward", ("agents", "reward"), "cost"])(batch)
    assert made["next", "agents", "reward"][:, 1, 0].tolist() == [1.5, 1.5, 1]
    assert made["next", "cost"].flatten().tolist() == [6, 6, 4]
    assert made["next", "agents", "original_reward"].unique().item() == 1
    assert made["next", "original_cost"].unique().item() == 4
    assert made["next", "original_reward"].flatten().tolist() == [1, 2, 3]


def test_padding_is_not_summed():
    batch = trajectories([5], EndKind.CUT)
    batch[keys.MASK] = torch.tensor([True, True, True, False, False])
    made = multi_step(batch, 0.5, 4)
    assert made["next", "steps_to_next_obs"].flatten().tolist() == [3, 2, 1, 1, 1]
    assert made["next", "reward"].flatten().tolist() == [2.75, 3.5, 3, 4, 5]


def test_missing_next_observation_is_marked_on_rows_that_target_it():
    batch = trajectories([4])
    batch[keys.NEXT_MISSING] = torch.tensor([False, True, False, False])
    made = multi_step(batch, 0.5, 2)
    assert made[keys.NEXT_MISSING].tolist() == [True, False, False, False]


def test_nested_group_that_ends_before_its_environment_is_refused():
    batch = trajectories([3])
    done = torch.zeros(3, 2, 1, dtype=torch.bool)
    done[2] = True
    batch["next", "agents", "done"] = done
    made = multi_step(batch, 0.9, 2)
    assert made["next", "agents", "done"][:, 0, 0].tolist() == [False, True, True]
    batch["next", "agents", "done"][0, 1] = True
    with pytest.raises(ValueError, match=r"'agents', 'done'\) ends where its trajectory continues"):
        multi_step(batch, 0.9, 2)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 12), GAMMAS)
def test_discounted_sums_equal_a_plain_sum(lengths, n_steps, gamma):
    last = Segments.from_lengths(torch.tensor(lengths))
    last = last.spread(last.lasts)
    reward = torch.randn(len(last), 2, dtype=torch.float64)
    rows = range(len(last))
    expected = [
        sum(gamma**k * reward[t + k] for k in range(n_steps) if t + k <= last[t]) for t in rows
    ]
    torch.testing.assert_close(discounted_sums(reward, last, gamma, n_steps), torch.stack(expected))


def test_infinite_reward_does_not_leave_its_trajectory():
    sums = discounted_sums(torch.tensor([1.0, float("inf"), 2.0]), torch.tensor([1, 1, 2]), 0.5, 4)
    assert sums.tolist() == [float("inf"), float("inf"), 2]


def test_invalid_horizons_and_unextendable_rows_are_refused():
    batch = trajectories([3])
    with pytest.raises(ValueError, match=r"gamma: .* got 0"):
        MultiStep(0, 3)
    with pytest.raises(ValueError, match="n_steps: expected at least 1, got 0"):
        MultiStep(0.9, 0)
    with pytest.raises(ValueError, match="cannot be extended"):
        multi_step(multi_step(batch, 0.9, 2), 0.9, 2)
    with pytest.raises(KeyError, match="'gain'"):
        MultiStep(0.9, 2, reward_keys=["gain"])(batch)
    with pytest.raises(KeyError, match="'next' is missing"):
        multi_step(batch.exclude("next"), 0.9, 2)
    with pytest.raises(TypeError, match="expected floating-point rewards"):
        multi_step(batch.set(keys.NEXT_REWARD, torch.ones(3, 1, dtype=torch.int64)), 0.9, 2)
    with pytest.raises(KeyError, match="no marker"):
        multi_step(TensorDict({"next": {"reward": torch.ones(3, 1)}}, [3]), 0.9, 2)
    with pytest.raises(ValueError, match="cannot sit in"):
        MultiStep(0.9, 2).check_place("worker")


def test_non_tensor_data_is_refused_with_its_key():
    batch = trajectories([3])
    batch["next", "text"] = NonTensorData("hello", batch_size=[3])
    with pytest.raises(TypeError, match="text"):
        multi_step(batch, 0.9, 2)


def test_sample_of_single_rows_warns_once_and_slices_do_not():
    rows = trajectories([9, 9])[torch.tensor([0, 5, 9, 14, 8])]
    rows["index"] = torch.arange(5)
    ahead = MultiStep(0.9, 3)
    with pytest.warns(UserWarning, match="4 of 4 rows that are not done reach 1 step") as said:
        ahead(rows)
    assert len(said) == 1
    ahead(rows)  # warnings are errors here
    rows["collector", "slice_ids"] = torch.arange(5)
    MultiStep(0.9, 3)(rows)
    MultiStep(0.9, 1)(rows.exclude(("collector", "slice_ids")))
