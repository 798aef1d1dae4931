import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rl_record.look.bins import COUNT, Bins

FLOATS = st.lists(st.floats(), max_size=30)


def test_counts_by_hand():
    bins = Bins.of(np.array([0.0, 0.4, 1.0, 2.5, 4.0, np.nan, np.inf]), 4)
    assert bins.edges.tolist() == [0, 1, 2, 3, 4]
    assert bins.counts.tolist() == [2, 1, 1, 1]


def test_few_whole_numbers_get_a_bin_each():
    bins = Bins.of(np.array([3, 5, 5, 6]))
    assert bins.edges.tolist() == [2.5, 3.5, 4.5, 5.5, 6.5]
    assert bins.counts.tolist() == [1, 0, 2, 1]


@given(FLOATS)
@example([np.finfo(float).max, -4.777350741110959e299])  # their last edge may round beyond float64
def test_every_finite_value_is_counted_once_however_large_or_close(values):
    bins = Bins.of(np.array(values, float))
    finite = np.array([v for v in values if np.isfinite(v)])
    assert bins.counts.sum() == len(finite)
    assert len(bins.counts) <= COUNT
    assert (np.diff(bins.edges) >= 0).all()
    if len(finite):
        assert bins.edges[0] <= finite.min()
        assert bins.edges[-1] >= finite.max()


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=9))
def test_huge_whole_numbers_are_counted(values):
    assert Bins.of(np.array(values)).counts.sum() == len(values)


@pytest.mark.parametrize("values", [[], [np.nan], [np.inf, -np.inf]])
def test_nothing_finite_has_no_bin(values):
    assert len(Bins.of(np.array(values, float)).counts) == 0
