from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_slabs import LazyFile
from rl_transforms.observations.moments import LocalMoments, Moments, SharedMoments


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sampled_from([0.0, 1e6]))
def test_moments_of_parts_are_those_of_the_whole(sizes, offset):
    rows = np.random.default_rng(sum(sizes)).normal(offset, 3.0, (sum(sizes), 2, 3))
    parts = [Moments.of(part) for part in np.split(rows, np.cumsum(sizes)[:-1])]
    joined = parts[0]
    for part in parts[1:]:
        joined = joined.joined(part)
    for found in (joined, Moments.merged(parts), Moments.merged([Moments.none((2, 3)), *parts])):
        assert found.count == len(rows)
        # the mean of numbers near 3 may be near 0, and is as exact as they are
        np.testing.assert_allclose(found.mean, rows.mean(0), rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(found.std, rows.std(0), rtol=1e-7, atol=1e-9)


def test_mean_far_from_zero_loses_no_deviation():
    rows = 1e9 + np.arange(6.0)
    one_by_one = Moments.none(())
    for row in rows:
        one_by_one = one_by_one.joined(Moments.of(row[None]))
    assert one_by_one.std == pytest.approx(rows.std(), rel=1e-9)


def test_decay_makes_rows_count_less_and_moves_no_mean():
    half = Moments.of(np.array([[1.0], [3.0]])).decayed(0.5)
    assert (half.count, half.mean, half.std) == (1, 2, 1)
    assert half.joined(Moments.of(np.array([[6.0]]))).mean == 4


def test_moments_are_packed_into_a_row_of_numbers():
    made = Moments.of(np.arange(12.0).reshape(4, 3))
    again = Moments.unpacked(made.packed(), [3])
    assert made.packed().shape == (7,)
    assert again.count == 4
    assert (again.mean == made.mean).all()
    assert (again.squares == made.squares).all()
    assert Moments.none((3,)).std.tolist() == [0, 0, 0]


def test_local_moments_are_those_put_last():
    kept = LocalMoments()
    assert kept.all() is None
    for rows in (2, 3):
        kept.put(Moments.of(np.ones((rows, 2))))
    assert kept.all().count == 3


def test_shared_moments_merge_the_parts_of_all_writers():
    file = LazyFile.shared("a test")
    writers = [SharedMoments(file, 2), SharedMoments(file, 2)]
    assert writers[0].all() is None
    for writer in writers:
        writer.put(Moments.of(np.ones((3, 2))))
    assert [writer.part.count for writer in writers] == [3, 3]
    assert writers[0].all().count == 6
