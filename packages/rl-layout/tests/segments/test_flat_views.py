from __future__ import annotations

import pytest
import torch

from rl_layout.segments import flat_views


def test_batch_dimensions_are_merged_time_fastest():
    values = torch.arange(24).reshape(2, 3, 4)
    assert flat_views.flatten(values, torch.Size([2, 3])).tolist() == values.reshape(6, 4).tolist()
    flat = torch.arange(5)
    assert flat_views.flatten(flat, torch.Size([5])) is flat


def test_a_leaf_of_another_batch_is_refused():
    with pytest.raises(ValueError, match=r"\[2, 3, '...'\]: got \[3, 2\]"):
        flat_views.flatten(torch.zeros(3, 2), torch.Size([2, 3]))


def test_cells_that_no_row_goes_to_are_filled():
    out = flat_views.pad(torch.tensor([[1, 2], [3, 4]]), torch.tensor([4, 0]), (2, 3), fill=-1)
    assert out.shape == (2, 3, 2)
    assert out[..., 0].tolist() == [[3, -1, -1], [-1, 1, -1]]
