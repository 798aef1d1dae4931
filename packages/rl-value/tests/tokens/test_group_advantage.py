"""Advantages over a group, by hand and against a loop over groups."""

import statistics
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_layout.synthetic import trajectories
from rl_value import GRPOAdvantage, group_advantage


@pytest.mark.parametrize(
    ("baseline", "wanted"),
    [("standardise", [-1, 1, 0, 0]), ("mean", [-3, 3, 0, 0]), ("leave_one_out", [-4.5, 4.5, 0, 0])],
)
def test_advantages_by_hand(baseline, wanted):
    reward = torch.tensor([1.0, 7.0, 4.0, 9.0], dtype=torch.float64)
    groups = torch.tensor([5, 5, 5, 2])
    found = group_advantage(reward, groups, baseline)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-6, atol=0)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9)), min_size=1, max_size=9),
    baseline=st.sampled_from(["standardise", "mean", "leave_one_out"]),
)
def test_advantages_are_those_of_a_loop_over_groups(pairs, baseline):
    found = group_advantage(
        torch.tensor([float(r) for _, r in pairs]), torch.tensor([g for g, _ in pairs]), baseline
    )
    for place, (group, reward) in enumerate(pairs):
        own = [float(r) for g, r in pairs if g == group]
        wanted = reward - sum(own) / len(own)
        if baseline == "leave_one_out" and len(own) > 1:
            wanted = reward - (sum(own) - reward) / (len(own) - 1)
        if baseline == "standardise" and len(own) > 1:
            wanted /= statistics.stdev(own) + 1e-6
        wanted = wanted if len(own) > 1 else 0.0
        torch.testing.assert_close(found[place].item(), wanted, rtol=1e-5, atol=1e-5)


def batch_of(lengths, groups):
    batch = trajectories(lengths)  # rewards 1, 2, ... in each
    batch["group_ids"] = torch.repeat_interleave(torch.tensor(groups), torch.tensor(lengths))
    return batch


def test_advantage_of_a_sequence_is_on_all_of_its_tokens():
    batch = batch_of([1, 3, 2], [4, 4, 4])  # returns 1, 6, 3 of mean 10 / 3
    found = GRPOAdvantage("mean")(batch)["advantage"]
    wanted = torch.tensor([-7 / 3] + [8 / 3] * 3 + [-1 / 3] * 2)
    torch.testing.assert_close(found.flatten(), wanted)
    assert found.shape == (6, 1)


def test_group_of_one_has_advantage_0_which_is_said_once():
    batch, advantage = batch_of([1, 3, 2], [4, 4, 8]), GRPOAdvantage()
    with pytest.warns(UserWarning, match="1 of 2 groups have one sequence, the first is group 8"):
        found = advantage(batch)["advantage"]
    assert found[4:].eq(0).all()
    assert found[:4].ne(0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        advantage(batch_of([1, 3, 2], [4, 4, 8]))


def test_rewards_and_groups_of_different_counts_are_refused():
    with pytest.raises(ValueError, match=r"expected a reward and a group for each sequence, \[S\]"):
        group_advantage(torch.ones(3), torch.zeros(2, dtype=torch.int64))


def test_baseline_of_another_name_is_refused():
    with pytest.raises(ValueError, match="baseline: expected 'standardise', 'mean'"):
        GRPOAdvantage("median")


def test_rewards_of_several_columns_are_refused():
    batch = batch_of([1, 2], [0, 0])
    batch["next", "reward"] = torch.ones(3, 2)
    with pytest.raises(ValueError, match="one reward a step"):
        GRPOAdvantage()(batch)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_rewards_that_would_be_cut_to_whole_numbers_are_refused(dtype):
    batch = batch_of([1, 2], [0, 0])
    batch["next", "reward"] = batch["next", "reward"].to(dtype)
    with pytest.raises(TypeError, match=r"\('next', 'reward'\): expected floating point, got tor"):
        GRPOAdvantage()(batch)
    with pytest.raises(TypeError, match="'reward': expected floating point, got torch"):
        group_advantage(torch.ones(2).to(dtype), torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_groups_that_are_no_whole_numbers_are_refused(dtype):
    batch = batch_of([1, 2], [0, 0])
    batch["group_ids"] = batch["group_ids"].to(dtype)
    for call in (GRPOAdvantage(), GRPOAdvantage().explain):
        with pytest.raises(TypeError, match="'group_ids': expected whole numbers, got torch"):
            call(batch)
    with pytest.raises(TypeError, match="groups: expected whole numbers, got torch"):
        group_advantage(torch.ones(2), torch.zeros(2, dtype=dtype))


def test_groups_that_change_in_a_sequence_are_refused():
    batch = batch_of([1, 3, 2], [4, 4, 4])
    batch["group_ids"][3] = 5
    message = r"'group_ids': expected one group in each sequence, number 1 has 4 and 5"
    with pytest.raises(ValueError, match=message):
        GRPOAdvantage()(batch)


def test_groups_in_a_column_are_those_of_rows():
    batch, column = (batch_of([1, 3, 2], [4, 4, 6]) for _ in range(2))
    column["group_ids"] = column["group_ids"].unsqueeze(-1)
    with pytest.warns(UserWarning, match="1 of 2 groups"):
        found = [GRPOAdvantage()(one)["advantage"] for one in (batch, column)]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("eps", "error"),
    [(0, ValueError), (-1e-3, ValueError), (float("nan"), ValueError), ("1e-6", TypeError)],
)
def test_eps_that_lets_rounding_through_is_refused(eps, error):
    with pytest.raises(error, match="eps: expected"):
        GRPOAdvantage(eps=eps)
    with pytest.raises(error, match="eps: expected"):
        group_advantage(torch.ones(2), torch.zeros(2, dtype=torch.int64), eps=eps)
