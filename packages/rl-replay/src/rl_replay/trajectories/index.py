"""The index of trajectories, updated as rows are written and overwritten."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from rl_replay.trajectories.invariants import check_invariants
from rl_replay.trajectories.reader import TrajectoryReader
from rl_replay.trajectories.tables import BROKEN, INDEXED, LOW, TrajectoryTables
from rl_replay.trajectories.writer import TrajectoryWriter
from rl_slabs import Window
from rl_slabs.internals import LANE_MASK, LANE_SHIFT

PENDING_ROWS = 4096
"""So many rows are written before they are taken in, which costs less together than one by one."""

_PIECE, _LONG = 1 << 20, 1 << 23


class TrajectoryIndex(TrajectoryReader):
    """Index of trajectories, built from each row's offset to its predecessor.

    A *piece* is a run of rows at a constant distance, each continuing the one before; a
    *trajectory* is a chain of pieces. Taking rows in costs what the rows cost, a query what its
    own size costs; nothing depends on the capacity.

    A trajectory is named by its slot, which stays the same while it grows and while its oldest
    rows are overwritten, and is used again after its last one was. Rows are named by number, as
    the ring gives them, the lane in the bits above 48.

    Args:
        capacity: Rows of each lane.
        lanes: How many lanes.
        tables: Arrays to live in, for instance in shared memory; private ones unless given. One
            process at a time may change a lane; what others read meanwhile may be wrong, and is
            proved afterwards by `proved`.

    Attributes:
        capacity: Rows of each lane.
        lanes: How many lanes.
        tables: The arrays.
        shared: Whether they were given, so that another process may be changing them.
        writers: What appends to each lane.

    Example:
        >>> index = TrajectoryIndex(9)
        >>> index.append(0, np.array([0, 1, 1, 0, 2, 1]))  # row 3 is another trajectory
        >>> len(index), index.lengths()
        (2, array([5, 1]))
        >>> index.rows(np.array([0]), np.array([1]), np.array([3]))
        array([1, 2, 4])
    """

    def __init__(
        self, capacity: int, *, lanes: int = 1, tables: TrajectoryTables | None = None
    ) -> None:
        made = TrajectoryTables.zeros(capacity, lanes) if tables is None else tables
        super().__init__(capacity, lanes, made, shared=tables is not None)
        self.writers = [TrajectoryWriter(made, capacity, lane) for lane in range(lanes)]

    def indexed(self, lane: int = 0) -> int:
        """The id of the next row of a lane.

        Example:
            >>> TrajectoryIndex(5).indexed()
            0
        """
        return self.writers[lane].indexed

    def low(self, lane: int = 0) -> int:
        """The oldest live row id of a lane.

        Example:
            >>> TrajectoryIndex(5).low()
            0
        """
        return self.writers[lane].low

    def append(self, first_number: int, back: NDArray[np.integer]) -> None:
        """Appends rows of one lane; the rows that they overwrite are dropped first.

        Args:
            first_number: The number of the first, the one after the last that was taken in.
            back: Integers `[rows]`: distance to the row that each continues, in row numbers.
                0 if it continues none, -1 if it is not real and so in no trajectory. No two
                rows may continue the same one.

        Raises:
            ValueError: Rows are missing in between, or there are more than the lane has.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.append(0, np.array([0, 1, 1]))
            >>> index.append(3, np.array([1, 1]))
            >>> index.low(), index.lengths()
            (2, array([3]))
        """
        self.writers[first_number >> LANE_SHIFT].append(first_number, back)

    def reaches(self, number: int) -> bool:
        """Whether this is the next row of its lane, and no change of the lane was interrupted."""
        writer = self.writers[number >> LANE_SHIFT]
        return writer.indexed == number and not writer.broken

    def drop_before(self, number: int) -> None:
        """Drops the rows of a lane before a row id; an id not indexed yet empties the lane.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.append(0, np.array([0, 1, 1]))
            >>> index.drop_before(2), index.lengths()
            (None, array([1]))
        """
        self.writers[number >> LANE_SHIFT].drop_before(number)

    def catch_up(self, back: NDArray[np.integer], window: Window) -> None:
        """Appends and drops rows until the index holds exactly those of a window.

        Args:
            back: Integers `[lanes * capacity]`, as for `append`, by position.
            window: The rows that can be read.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.catch_up(np.array([1, 1, 1]), Window((2,), (3,))), index.lengths()
            (None, array([3]))
        """
        if self.covers(window):
            return
        for lane, (low, count) in enumerate(zip(window.first, window.counts, strict=True)):
            self.catch_up_lane(lane, back, low, low + count)

    def catch_up_lane(self, lane: int, back: NDArray[np.integer], low: int, end: int) -> None:
        """`catch_up` for one lane, by its writer.

        Args:
            lane: Which lane.
            back: Integers `[lanes * capacity]`, as for `append`, by position.
            low: The number of the oldest row that can be read.
            end: The number of the next row.

        Example:
            >>> index = TrajectoryIndex(3, lanes=2)
            >>> index.catch_up_lane(0, np.array([0, 1, 1, 0, 0, 0]), 0, 3), index.lengths()
            (None, array([3]))
        """
        writer = self.writers[lane]
        if writer.broken or writer.indexed > end:
            writer.clear(low)
        writer.drop_before(low)
        if (first := writer.indexed) < end:
            writer.append(first, self._ring_slice(back, writer.base, first, end - first))

    def covers(self, window: Window) -> bool:
        """Whether it holds exactly the rows of a window, with no update in progress.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.covers(Window((0,), (0,))), index.covers(Window((0,), (2,)))
            (True, False)
        """
        # asked for every sample of slices: no property is called
        for writer, first, count in zip(self.writers, window.first, window.counts, strict=True):
            words = writer.words
            low, end = words[LOW], words[INDEXED]
            if words[BROKEN] or writer.first_number + low != first or end - low != count:
                return False
        return True

    def clear(self) -> None:
        """Drops every row; `catch_up` indexes them again.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.append(0, np.array([0, 1, 1]))
            >>> index.clear(), index.indexed()
            (None, 0)
        """
        for lane, writer in enumerate(self.writers):
            writer.clear(lane << LANE_SHIFT)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """A copy of the used parts of all tables, for a checkpoint.

        Example:
            >>> TrajectoryIndex(3).state()["words"].shape
            (1, 16)
        """
        return self.tables.state()

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restores the `state` of another index of the same size; equal seeds then draw the same.

        Args:
            state: What its `state` returned.

        Raises:
            ValueError: It was of another size, or its arrays do not fit each other.

        Example:
            >>> index, other = TrajectoryIndex(3), TrajectoryIndex(3)
            >>> index.append(0, np.array([0, 1, 0]))
            >>> other.restore(index.state()), len(other)
            (None, 2)
        """
        self.tables.restore(state)

    def check(self, back: NDArray[np.integer]) -> None:
        """Compares all tables with a row-by-row reading. Slow: for tests.

        Args:
            back: Integers `[lanes * capacity]`, as for `append`, by position.

        Raises:
            AssertionError: Something differs; the message says what.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.append(0, np.array([0, 1]))
            >>> index.check(np.array([0, 1, 0]))
        """
        check_invariants(self, back)

    def _ring_slice(
        self, back: NDArray[np.integer], base: int, first: int, count: int
    ) -> NDArray[np.integer]:
        start = base + (first & LANE_MASK) % self.capacity
        rest = start + count - (base + self.capacity)
        if rest <= 0:
            return back[start : start + count]
        return np.concatenate((back[start : base + self.capacity], back[base : base + rest]))


def pending(index: TrajectoryIndex | None, window: Window) -> int:
    """How many rows of a window are not indexed yet."""
    if index is None:
        return len(window)
    ends = [first + count for first, count in zip(window.first, window.counts, strict=True)]
    return sum(
        min(max(end - index.indexed(lane), 0), window.counts[lane]) for lane, end in enumerate(ends)
    )


def fill_index(
    index: TrajectoryIndex, back: NDArray[np.integer], window: Window, *, piece: int = _PIECE
) -> None:
    """Indexes all rows of a window; millions of rows with a progress bar, if tqdm is installed."""
    for lane, (low, count) in enumerate(zip(window.first, window.counts, strict=True)):
        starts = range(max(low, index.indexed(lane)), low + count, piece)
        for start in _shown(starts, pending(index, window)):
            index.catch_up_lane(lane, back, low, min(start + piece, low + count))
    index.catch_up(back, window)


def _shown(pieces: Iterable[int], rows: int) -> Iterable[int]:
    if rows < _LONG or importlib.util.find_spec("tqdm") is None:
        return pieces
    from tqdm.auto import tqdm

    bar: Iterable[int] = tqdm(
        pieces, desc="trajectories", unit_scale=_PIECE, unit=" rows", leave=False
    )
    return bar
