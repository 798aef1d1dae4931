"""Allocation of table slots."""

from __future__ import annotations

import numpy as np

from rl_replay.trajectories.lane_tables import FreeList

COLUMN = 6


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
