"""One lane's part of the trajectory tables: its counters, and its free slots used again first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl_replay.trajectories.tables import (
    BROKEN,
    FREE_PIECES,
    FREE_TRAJECTORIES,
    INDEXED,
    LOW,
    TrajectoryTables,
)
from rl_slabs.internals import LANE_SHIFT


class FreeList:
    """The free slots of one lane's part of a table, in arrays that may be shared."""

    def __init__(self, freed: NDArray[np.int32], words: memoryview, column: int, base: int) -> None:
        self._array = freed
        self._freed = freed.data
        self._words = words
        self._column = column
        self._base = base

    def take_one(self) -> int:
        """Takes one free slot."""
        words, column = self._words, self._column
        free: int = words[column]
        if free:
            words[column] = free - 1
            slot: int = self._freed[free - 1]
            return slot
        # no slot is free: the first one never used
        fresh: int = words[column + 1]
        words[column + 1] = fresh + 1
        return self._base + fresh

    def take(self, count: int) -> NDArray[np.int64]:
        """Takes `count` free slots, int64 `[count]`."""
        words, column = self._words, self._column
        free: int = words[column]
        again = min(free, count)
        words[column] = free - again
        # a copy: the next release overwrites these entries
        recycled = self._array[free - again : free].astype(np.int64)
        if again == count:
            return recycled
        fresh: int = words[column + 1]
        # released slots first, the rest extends the used part
        words[column + 1] = fresh + count - again
        first = self._base + fresh
        return np.concatenate((recycled, np.arange(first, first + count - again)))

    def give(self, slots: int | NDArray[np.int64]) -> None:
        """Releases one slot, or an array of distinct slots."""
        words, column = self._words, self._column
        free: int = words[column]
        if isinstance(slots, int):
            self._freed[free] = slots
            words[column] = free + 1
            return
        self._array[free : free + len(slots)] = slots
        words[column] = free + len(slots)


class LaneTables:
    """One lane's part of the tables; see `TrajectoryWriter`."""

    def __init__(self, tables: TrajectoryTables, capacity: int, lane: int = 0) -> None:
        self.tables = tables
        self.capacity = capacity
        self.base = lane * capacity
        self.words = words = tables.words[lane].data
        mine = slice(self.base, self.base + capacity)
        self.free_pieces = FreeList(tables.free_pieces[mine], words, FREE_PIECES, self.base)
        self.free_trajectories = FreeList(
            tables.free_trajectories[mine], words, FREE_TRAJECTORIES, self.base
        )
        self.first_number = lane << LANE_SHIFT

    @property
    def indexed(self) -> int:
        """The id of the next row."""
        return self.first_number + int(self.words[INDEXED])

    @property
    def low(self) -> int:
        """The oldest live row id."""
        return self.first_number + int(self.words[LOW])

    @property
    def broken(self) -> bool:
        """Whether a writer ended within an update, so that the lane must be rebuilt."""
        return bool(self.words[BROKEN])
