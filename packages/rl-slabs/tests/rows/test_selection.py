"""Which rows an index means, and which indices are refused."""

import numpy as np
import pytest
import torch

from rl_slabs.rows.selection import require_inside, select


def test_one_row_has_no_batch_dimension():
    assert select(np.int32(3), 5) == (3, torch.Size())
    assert [select(row, 5)[0] for row in (0, 4)] == [0, 4]


def test_a_slice_has_one_batch_dimension():
    assert select(slice(1, None, 2), 6) == (slice(1, 6, 2), torch.Size([3]))


def test_an_index_of_any_shape_becomes_the_batch_shape():
    index, shape = select(np.arange(6, dtype=np.int32).reshape(2, 3), 7)
    assert shape == (2, 3)
    assert index.tolist() == [0, 1, 2, 3, 4, 5]
    assert index.dtype == torch.int64


@pytest.mark.parametrize("rows", [-1, 5, slice(-2, None), slice(0, 6), slice(4, 0, -1)])
def test_rows_out_of_range_are_refused_with_the_range(rows):
    with pytest.raises(ValueError, match=r"in \[0, 5.*the last one is 4"):
        select(rows, 5)


def test_a_tensor_out_of_range_is_refused_with_what_came():
    with pytest.raises(ValueError, match=r"must be in \[0, 5\), got -2 to 7"):
        require_inside(torch.tensor([3, -2, 7]), 5)
    require_inside(torch.tensor([], dtype=torch.int64), 5)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (torch.ones(5, dtype=torch.bool), "got a mask"),
        (torch.zeros(2), "got torch.float32"),
        (True, "got bool"),
        ("3", "got str"),
        ([1, 2], "got list"),
    ],
)
def test_select_refuses_wrong_indices(rows, said):
    with pytest.raises(TypeError, match=said):
        select(rows, 5)
