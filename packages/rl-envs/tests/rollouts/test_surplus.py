"""Surplus steps: which are kept, how they are marked, and where the next rollout finds them."""

import pytest
import torch

from rl_envs.rollouts.columns import Columns
from rl_envs.rollouts.surplus import SurplusSteps
from rl_layout import keys


def mask_columns(*rows):
    columns = Columns(torch.Size([len(rows)]), len(rows[0]))
    columns.add(keys.MASK, torch.Size(), torch.bool)
    columns.tensors[keys.MASK][:] = torch.tensor(rows) > 0
    return columns


def test_surplus_begins_after_the_returned_steps_of_each_row():
    columns = mask_columns([1, 1, 1, 0], [1, 0, 1, 0])  # 3 columns, then the root
    leftover = SurplusSteps.of(columns, set(), num_played=3, num_returned=2)
    assert leftover.columns[keys.MASK].tolist() == [[True, False], [False, False]]
    assert leftover.num_steps == 1


def test_surplus_does_not_share_memory_with_the_batch():
    columns = mask_columns([1, 1, 1, 0])
    leftover = SurplusSteps.of(columns, set(), num_played=3, num_returned=2)
    columns.tensors[keys.MASK].zero_()
    assert leftover.columns[keys.MASK].tolist() == [[True, False]]


def test_begin_anew_marks_the_next_step_or_the_root_where_no_step_is_kept():
    flag, mask = torch.zeros(3, 3, 1).bool(), torch.zeros(3, 3).bool()
    mask[1, 0] = mask[2, 1] = True
    leftover = SurplusSteps({("is_init",): flag, keys.MASK: mask}, set())
    leftover.mark_first_steps(torch.tensor([True, True, False]))
    assert flag.squeeze(-1).tolist() == [[False, False, True], [True, False, False], [False] * 3]


def test_put_into_copies_steps_and_root_and_adds_outputs_of_the_policy():
    columns = mask_columns([0, 0, 0, 0], [0, 0, 0, 0])
    noise = torch.arange(12.0).view(2, 3, 2)
    kept = {keys.MASK: torch.ones(2, 3).bool(), ("noise",): noise}
    SurplusSteps(kept, {("noise",)}).load_into(columns)
    assert columns.tensors[keys.MASK].sum(1).tolist() == [3, 3]
    assert torch.equal(columns.tensors["noise",][:, :3], noise)


def test_put_into_refuses_columns_of_another_environment():
    columns = mask_columns([0, 0, 0])
    kept = {keys.MASK: torch.ones(1, 3).bool(), ("speed",): torch.ones(1, 3)}
    with pytest.raises(ValueError, match=r"differ in \['speed'\]"):
        SurplusSteps(kept, set()).load_into(columns)
