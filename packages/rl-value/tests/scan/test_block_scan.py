"""Flat rows of arrays and the blocked scan over them, by hand and against the loop."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_value import reference
from rl_value.scan.block_scan import (
    block_scan,
    constant_scan,
    cuts_of,
    empty_rows,
    obstacle,
    rows_of,
)

factors = st.sampled_from([0.0, 1e-9, 0.3, 0.9405, 0.999, 1.0])


def by_hand(factor, cut, term):
    y, after = np.empty(len(term)), 0.0
    for i in reversed(range(len(term))):
        after = term[i] + (0 if cut[i] else factor * after)
        y[i] = after
    return y


def scanned(factor, cut, term):
    out = np.empty_like(term)
    constant_scan(factor, cut, term, out)
    return out


def test_steps_that_numpy_cannot_scan_have_an_obstacle():
    steps = torch.zeros(3)
    assert obstacle((0.9,), steps) == ""
    assert obstacle((torch.ones(3),), steps) == "a factor for each step"
    assert obstacle((0.9,), torch.zeros(0, 1)) == "no step"
    assert obstacle((0.9,), steps, steps.double()) == "several dtypes"
    assert obstacle((0.9,), steps, torch.zeros(3, requires_grad=True)) == "gradients are wanted"
    with torch.no_grad():
        assert obstacle((0.9,), steps, torch.zeros(3, requires_grad=True)) == ""
    assert obstacle((0.9,), torch.zeros(3, device="meta")) == "on meta"


def test_rows_of_an_array_lay_time_out_fastest():
    values, flag = rows_of(0, torch.tensor([[1, 2], [3, 4]]), torch.tensor([[True], [False]]))
    assert values.tolist() == [1, 3, 2, 4]
    assert flag.tolist() == [True, False, True, False]  # in the shape of the first


def test_empty_rows_share_memory_with_their_array():
    made, rows = empty_rows(torch.zeros(2, 2), 0)
    rows[:] = 1, 2, 3, 4
    assert made.tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_cuts_include_the_last_step_of_each_column():
    flag = np.array([True, False, False, False])
    assert cuts_of(2, flag).tolist() == [True, True, False, True]
    assert flag.sum() == 1  # the flag itself stays
    assert cuts_of(4, flag, flag[::-1]).tolist() == [True, False, False, True]


def test_constant_scan_of_ones_is_the_geometric_sum():
    assert scanned(0.5, np.zeros(3, bool), np.ones(3)).tolist() == [1.75, 1.5, 1.0]


def test_constant_scan_stops_at_cuts():
    cut, term = np.array([False, True, False]), np.array([1.0, 2.0, 4.0])
    assert scanned(0.5, cut, term).tolist() == [2.0, 2.0, 4.0]


@given(st.integers(0, 2**31), st.sampled_from([5, 129, 2_047, 4_099]), factors, st.data())
def test_constant_scan_equals_the_loop_wherever_rows_are_cut(seed, size, factor, data):
    cut, term = np.zeros(size, bool), np.random.default_rng(seed).standard_normal(size)
    cut[data.draw(st.lists(st.integers(0, min(size, 96) - 1), max_size=12))] = True
    expected = by_hand(factor, cut, term)
    np.testing.assert_allclose(scanned(factor, cut, term), expected, rtol=1e-12, atol=1e-12)


@given(st.sampled_from([np.nan, np.inf, -np.inf]), factors, st.integers(0, 299), st.data())
def test_rows_of_other_segments_keep_their_bits_where_one_is_not_finite(poison, factor, row, data):
    end = data.draw(st.integers(0, 299))
    cut, term = np.zeros(300, bool), np.random.default_rng(row).standard_normal(300)
    cut[end] = True
    clean = scanned(factor, cut, term)
    term[row] = poison
    found, after = scanned(factor, cut, term), row + 1
    first = end + 1 if end < row else 0
    np.testing.assert_array_equal(found[after:], clean[after:])
    np.testing.assert_array_equal(found[:first], clean[:first])
    assert not np.isfinite(found[row])


@pytest.mark.parametrize("weight", [np.inf, np.nan])
def test_rows_of_other_segments_keep_their_bits_where_a_weight_is_not_finite(weight):
    weights, term = np.full(300, 0.9), np.random.default_rng(0).standard_normal(300)
    weights[140] = 0  # a cut in the middle of a block
    clean, found = np.empty(300), np.empty(300)
    block_scan(weights, term, clean)
    weights[143] = weight
    block_scan(weights, term, found)
    np.testing.assert_array_equal(found[:141], clean[:141])
    np.testing.assert_array_equal(found[144:], clean[144:])
    assert not np.isfinite(found[141:144]).any()


@pytest.mark.parametrize("factor", [0.9405, 0.99, 0.999, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.003])
def test_float32_is_stable_over_any_length(factor, share):
    generator = torch.Generator().manual_seed(1)
    term = torch.randn(70_003, 1, generator=generator)
    cut = torch.rand(70_003, 1, generator=generator) < share
    found = scanned(factor, cut[:, 0].numpy(), term[:, 0].numpy())
    weight = torch.full_like(term, factor).double()
    exact = reference.linear_scan(weight, term.double(), cut)[:, 0].numpy()
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() <= 5e-7 * np.abs(exact).max()
