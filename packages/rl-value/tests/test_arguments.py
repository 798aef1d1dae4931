"""Cuts and factors of returns, by hand."""

import pytest
import torch

from rl_value.arguments import cut_after, decay_of, time_of, zeroed
from rl_value.scan.block_scan import is_transformed


def test_time_of_a_row_is_its_only_dimension():
    assert time_of(torch.zeros(2, 3, 1), -2) == 1
    assert time_of(torch.zeros(3), -2) == 0


def test_cut_behind_done_steps_and_the_last_one():
    done = torch.tensor([[True], [False], [False]])
    assert cut_after(done, -2).flatten().tolist() == [True, False, True]


def test_zeroed_values_hold_no_nan_under_the_flag():
    values = torch.tensor([1.0, float("nan")])
    assert zeroed(values, torch.tensor([False, True])).tolist() == [1.0, 0.0]


def test_decay_of_cut_steps_is_zero():
    cut = torch.tensor([[False], [True]])
    decay = decay_of(0.5, 0.5, cut, torch.ones(2, 1))
    assert decay.flatten().tolist() == pytest.approx([0.25, 0.0])


def test_code_is_transformed_under_vmap_only():
    seen = []
    torch.vmap(lambda x: seen.append(is_transformed()) or x)(torch.ones(2))
    assert (is_transformed(), seen) == (False, [True])
