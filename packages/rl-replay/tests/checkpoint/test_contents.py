"""Where rows of one set of lanes go in another, by hand."""

import numpy as np
import pytest

from rl_replay.checkpoint.contents import Move, Moves, end_to_end, order_of, window_of
from rl_slabs import Window

LANE = 1 << 48


def test_rows_of_the_oldest_lane_come_first_and_fill_lane_after_lane():
    former = Window((7, LANE + 2), (4, 3))
    runs = end_to_end(former, former.first, [1, 0], 15, 3)
    assert runs == [
        Move(slice(0, 2), range(7, 9), range(15 + 3, 15 + 5)),
        Move(slice(2, 4), range(9, 11), range(LANE + 15, LANE + 17)),
        Move(slice(4, 7), range(LANE + 2, LANE + 5), range(15, 18)),
    ]
    window = window_of(runs, 3)
    assert window == Window((15, LANE + 15, 2 * LANE), (5, 2, 0))
    assert order_of(window, 5) == [1, 2, 0]


def test_rows_that_were_overwritten_during_the_dump_are_left_out():
    former = Window((3, LANE), (5, 4))
    runs = end_to_end(former, (5, LANE + 4), [0, 1], 6, 1)
    assert runs == [Move(slice(2, 5), range(5, 8), range(12, 15))]
    moves = Moves(runs, 9, 5, 6)
    assert moves.places() == [2, slice(0, 3), 4]
    positions, numbers = moves.positions()
    assert positions.tolist() == [-1, -1, 0, 1, 2, -1, -1, -1, -1]
    assert numbers[2:5].tolist() == [12, 13, 14]


def test_distances_across_lanes_become_those_of_the_dump():
    moves = Moves([], 6, 5, 6)
    away = np.array([1, 15 - 4, 0, -3], dtype=np.int32)  # of three lanes of five rows
    assert moves.distances(away).tolist() == [1, 1, 0, -3]


def test_renumbered_finds_rows_by_their_former_ids():
    runs = [
        Move(slice(0, 2), range(7, 9), range(15, 17)),
        Move(slice(2, 3), range(LANE, LANE + 1), range(20, 21)),
    ]
    moves = Moves(runs, 3, 5, 6)
    assert moves.renumbered(np.array([8, LANE])).tolist() == [16, 20]
    for wrong in (6, 9, LANE + 1):
        with pytest.raises(ValueError, match="not there"):
            moves.renumbered(np.array([wrong]))


def test_end_to_end_refuses_too_many_rows():
    former = Window((0,), (7,))
    with pytest.raises(ValueError, match="7 rows do not fit this storage of 6 in 2 lanes"):
        end_to_end(former, (0,), [0], 6, 2)
