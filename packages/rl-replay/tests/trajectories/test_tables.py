"""Searches in the tables of trajectories, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rl_replay.trajectories.index import TrajectoryIndex, even_length, numbers_of, pieces_with
from rl_replay.trajectories.tables import START, TrajectoryTables, positions_of


@pytest.fixture
def pieces():
    """Rows 0 1 2 4 5 are one trajectory of two pieces, row 3 is another."""
    index = TrajectoryIndex(9)
    index.append(0, np.array([0, 1, 1, 0, 2, 1]))
    return index.tables.pieces


def test_pieces_are_found_from_the_newest_one(pieces) -> None:
    found = pieces_with(pieces, np.array([2, 2]), np.array([2, 3]))
    assert found[:, START].tolist() == [0, 3]


def test_slices_over_two_pieces_have_the_rows_of_both(pieces) -> None:
    numbers = numbers_of(pieces, np.array([2]), np.array([1]), np.array([4]))
    assert numbers.tolist() == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("counts", "length"), [([3, 3], 3), ([3, 4], None), ([], None), ([2] * 1000, None)]
)
def test_a_common_length_is_found_for_few_slices(counts, length) -> None:
    assert even_length(np.array(counts, dtype=np.int64)) == length


def test_positions_of_a_lane_follow_those_of_the_lanes_before() -> None:
    assert positions_of(np.array([3, 7]), 5, 1).tolist() == [3, 2]
    assert positions_of(np.array([3, 7, (1 << 48) + 4]), 5, 2).tolist() == [3, 2, 9]


def test_tables_of_another_shape_are_refused() -> None:
    arrays = {
        name: np.zeros(shape, dtype)
        for name, (dtype, shape) in TrajectoryTables.shapes(5, 2).items()
    }
    assert TrajectoryTables.over(arrays, 5, 2).live.shape == (10,)
    with pytest.raises(ValueError, match="expected the arrays"):
        TrajectoryTables.over(arrays, 5)
