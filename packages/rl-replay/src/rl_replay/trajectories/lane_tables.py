"""One lane's part of the trajectory tables: its counters and free slots."""

from __future__ import annotations

from rl_replay.trajectories.free_list import FreeList
from rl_replay.trajectories.tables import (
    BROKEN,
    FREE_PIECES,
    FREE_TRAJECTORIES,
    INDEXED,
    LOW,
    TrajectoryTables,
)
from rl_slabs.internals import LANE_SHIFT


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
