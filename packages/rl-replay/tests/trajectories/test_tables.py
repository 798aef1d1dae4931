"""The tables of trajectories by hand: their shapes, searches in them, and free slots."""

from __future__ import annotations

import numpy as np
import pytest

from rl_replay.trajectories.index import TrajectoryIndex, even_length, numbers_of, pieces_with
from rl_replay.trajectories.tables import START, FreeList, TrajectoryTables, positions_of

COLUMN = 6


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


def free_list(base: int = 0) -> FreeList:
    return FreeList(np.zeros(5, np.int32), memoryview(np.zeros(16, np.int64)), COLUMN, base)


def test_fresh_slots_rise_from_the_base() -> None:
    slots = free_list(base=10)
    assert slots.take_one() == 10
    assert slots.take(2).tolist() == [11, 12]


def test_released_slots_are_taken_before_fresh_ones() -> None:
    slots = free_list(base=10)
    slots.take(2)
    slots.give(10)
    assert slots.take(2).tolist() == [10, 12]


def test_arrays_of_slots_are_released_together() -> None:
    slots = free_list()
    slots.give(slots.take(3))
    assert sorted(slots.take(3).tolist()) == [0, 1, 2]
    assert slots.take_one() == 3
