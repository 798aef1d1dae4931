from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_layout import Segments
from rl_layout.testing import batches


@given(batches(), st.sampled_from([0.0, 0.1, 0.5]))
def test_time_blocks_hold_every_real_row_once_and_little_else(batch, max_waste):
    segments = Segments.of(batch)
    values = torch.arange(1, batch.numel() + 1).reshape(batch.batch_size)
    out = torch.zeros(batch.numel(), dtype=torch.int64)
    for block in segments.time_blocks(max_waste):
        assert 1 - block.real.float().mean() <= max_waste + 1e-6  # float32 mean of few cells
        block.scatter(block.gather(values, batch.batch_size), out)
    assert torch.equal(out.reshape(batch.batch_size), segments.scatter(segments.gather(values)))


def test_time_blocks_carry_columns_on():
    blocks = Segments.from_lengths(torch.tensor([2, 5, 4])).time_blocks(0.0)
    assert [block.start for block in blocks] == [0, 2, 4]
    assert blocks[0].rows.tolist() == [[2, 7, 0], [3, 8, 1]]
    assert blocks[1].rows.tolist() == [[4, 9], [5, 10]]
    assert blocks[2].rows.tolist() == [[6]]


def test_one_length_is_one_block_and_no_segment_is_none():
    assert [
        tuple(b.rows.shape) for b in Segments.from_lengths(torch.tensor([4, 4])).time_blocks()
    ] == [(4, 2)]
    padding = Segments.from_ids(torch.tensor([-1, -1]))
    assert padding.time_blocks() == []


def test_a_block_runs_on_while_few_cells_are_empty():
    segments = Segments.from_lengths(torch.tensor([3, 4]))
    assert [tuple(b.rows.shape) for b in segments.time_blocks(1 / 8)] == [(4, 2)]
    assert [tuple(b.rows.shape) for b in segments.time_blocks(0.1)] == [(3, 2), (1, 1)]


@pytest.mark.parametrize("share", [1.0, -0.1])
def test_a_share_outside_its_range_is_refused(share):
    with pytest.raises(ValueError, match=r"must be in \[0, 1\)"):
        Segments.from_lengths(torch.tensor([2])).time_blocks(share)
