"""Flat rows of arrays, and scans of one factor over them, by hand."""

import numpy as np
import torch

from rl_value.scan.block_scan import PieceScan
from rl_value.scan.constant_decay import cuts_of, discounted_scan, empty_rows, is_plain, rows_of
from rl_value.scan.powers import join


def test_numbers_are_plain_factors_and_tensors_are_not():
    assert is_plain((0.9,), torch.zeros(3))
    assert not is_plain((torch.ones(3),), torch.zeros(3))


def test_rows_of_an_array_lay_time_out_fastest():
    assert rows_of(0, torch.tensor([[1, 2], [3, 4]]))[0].tolist() == [1, 3, 2, 4]


def test_empty_rows_share_memory_with_their_array():
    made, rows = empty_rows(torch.zeros(2, 2), 0)
    rows[:] = 1, 2, 3, 4
    assert made.tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_cuts_include_the_last_step_of_each_column():
    flag = torch.tensor([True, False, False])
    assert cuts_of((flag,), flag.shape, 0).tolist() == [True, False, True]


def test_discounted_scan_of_ones_is_the_geometric_sum():
    like, none = torch.zeros(3), torch.zeros(3, dtype=torch.bool)
    scanned = discounted_scan(0.5, (none,), like, lambda here, cut, term: term.fill(1), 0)
    assert scanned.tolist() == [1.75, 1.5, 1.0]


def test_piece_scan_of_one_factor_stops_at_cuts():
    rows, cut, term = np.empty(3), np.array([False, True, False]), np.array([1.0, 2.0, 4.0])
    scan = PieceScan(rows, factor=0.5)
    for here in scan.pieces:
        scan.take(cut[here], term[here], rows[here])
    assert rows.tolist() == [2.0, 2.0, 4.0]


def test_join_carries_first_terms_across_blocks_that_are_not_cut():
    heads = np.array([1.0, 2.0, 4.0])
    join(np.array([0.5, 0.0, 1.0]), heads)
    assert heads.tolist() == [2.0, 2.0, 4.0]
