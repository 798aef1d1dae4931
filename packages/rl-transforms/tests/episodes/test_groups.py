from __future__ import annotations

import pytest
import torch

from rl_layout.testing import trajectories
from rl_tensordict import CPU
from rl_transforms.episodes.groups import group_mask, next_done


def test_mask_spreads_over_a_group():
    mask = torch.tensor([True, False, True])
    spread = group_mask(mask, torch.Size([3, 2, 1]), CPU)
    assert spread.squeeze(-1).tolist() == [[True, True], [False, False], [True, True]]
    assert group_mask(None, torch.Size([3, 1]), CPU).all()


def test_mask_of_another_shape_or_dtype_is_refused():
    with pytest.raises(ValueError, match=r"reset mask: .*\[3, 1\], got \[2\]"):
        group_mask(torch.tensor([True, False]), torch.Size([3, 1]), CPU)
    with pytest.raises(TypeError, match=r"expected torch.bool, got torch.int64"):
        group_mask(torch.tensor([1, 0, 1]), torch.Size([3, 1]), CPU)


def test_done_is_completed_from_terminated_and_truncated():
    batch = trajectories([2, 3])
    whole = next_done("It", batch, ())
    assert torch.equal(next_done("It", batch.exclude(("next", "done")), ()), whole)
    with pytest.raises(KeyError, match="It: \\('next', 'agents', 'done'\\) is missing"):
        next_done("It", batch, ("agents",))
