"""The arrays of a trajectory index, and the meaning of their columns.

Slots of pieces and of trajectories are counted through all lanes, like positions of rows: those of
lane l are `[l * capacity, (l + 1) * capacity)`. So a reader gathers from the tables of all lanes at
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl_slabs.internals import LANE_MASK, LANE_SHIFT

# Columns of `pieces`. The row at step s of its trajectory, START <= s < END, has the number
# ORIGIN + STRIDE * s. STRIDE is 0 while there is only one row. Steps count from the first row that
# a trajectory ever had, so eviction changes no piece. JUMP leads far back in the trajectory, over
# SPAN pieces, to the one that starts at step JUMP_START.
ORIGIN, STRIDE, START, END, TRAJECTORY, PREVIOUS, JUMP, JUMP_START, SPAN = range(9)

# Columns of `trajectories`: steps [BEGIN, STOP) are there, TAIL is the newest piece, PLACE is where
# `live` lists the trajectory, BORN is the number of its first row.
BEGIN, STOP, TAIL, PLACE, BORN = range(5)

# Columns of `words`, one row for each lane. The slots of a table that were given back, and the
# first one that was never used, are in neighbouring words.
INDEXED, LOW, STEPS, LIVE, PIECES, LONE, FREE_PIECES, FRESH_PIECE = range(8)
FREE_TRAJECTORIES, FRESH_TRAJECTORY, BROKEN = range(8, 11)
WORDS = 16

# The counter of each table's used slots, which come first in the part of a lane
_USED = {
    "pieces": FRESH_PIECE,
    "trajectories": FRESH_TRAJECTORY,
    "live": LIVE,
    "free_pieces": FREE_PIECES,
    "free_trajectories": FREE_TRAJECTORIES,
}

Number = TypeVar("Number", bound=np.integer[Any])

NO_PIECE = -1
"""What `piece_of` says of a row that is not real."""


@dataclass(frozen=True)
class TrajectoryTables:
    """The arrays of a trajectory index."""

    # Only as much of them is touched as there are rows, pieces and trajectories at the same time,
    # so memory that was never written costs nothing where the system gives it out page by page.

    piece_of: NDArray[np.int32]  # int32 [lanes * capacity], the piece of the row at each position
    pieces: NDArray[np.int64]  # int64 [lanes * capacity, 9]
    trajectories: NDArray[np.int64]  # int64 [lanes * capacity, 5]
    # int64 [lanes * capacity], for each lane the slots of its trajectories, end to end
    live: NDArray[np.int64]
    free_pieces: NDArray[np.int32]  # int32 [lanes * capacity], slots to be used again
    free_trajectories: NDArray[np.int32]  # int32 [lanes * capacity], the same
    words: NDArray[np.int64]  # int64 [lanes, 16], counters

    @classmethod
    def shapes(cls, capacity: int, lanes: int = 1) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of each array, as `rl_slabs.Arrays` takes them."""
        rows = capacity * lanes
        if rows >= 1 << 31:
            raise ValueError(
                f"an index covers less than 2^31 rows, got {capacity} in each of {lanes} lanes. "
                "Use several buffers."
            )
        return {
            "piece_of": ("int32", (rows,)),
            "pieces": ("int64", (rows, SPAN + 1)),
            "trajectories": ("int64", (rows, BORN + 1)),
            "live": ("int64", (rows,)),
            "free_pieces": ("int32", (rows,)),
            "free_trajectories": ("int32", (rows,)),
            "words": ("int64", (lanes, WORDS)),
        }

    @classmethod
    def zeros(cls, capacity: int, lanes: int = 1) -> Self:
        """Empty tables in private memory."""
        shapes = cls.shapes(capacity, lanes)
        return cls(**{name: np.zeros(shape, dtype) for name, (dtype, shape) in shapes.items()})

    @classmethod
    def over(cls, arrays: Mapping[str, NDArray[np.generic]], capacity: int, lanes: int = 1) -> Self:
        """Tables over existing arrays, with their contents."""
        wanted = cls.shapes(capacity, lanes)
        found = {name: (str(a.dtype), a.shape) for name, a in arrays.items()}
        if found != wanted:
            raise ValueError(f"expected the arrays {wanted}, got {found}.")
        return cls(**{field.name: arrays[field.name] for field in fields(cls)})  # type: ignore[arg-type]

    def state(self) -> dict[str, NDArray[np.generic]]:
        """A copy of the used parts, for a checkpoint."""
        # an index made anew from the rows has its trajectories in other slots, and draws others
        words = self.words.copy()
        found = {"piece_of": [self.piece_of[rows] for rows in self._rows(words)]} | {
            name: [getattr(self, name)[part] for part in self._parts(words, column)]
            for name, column in _USED.items()
        }
        return {"words": words} | {name: np.concatenate(arrays) for name, arrays in found.items()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Fills tables from a `state`; the counters last."""
        words = np.asarray(state["words"], dtype=np.int64)
        room = len(self.live)
        if words.shape != self.words.shape:
            raise ValueError(
                f"the state is of an index with counters {words.shape}, this one has "
                f"{self.words.shape}: restore it into as many lanes."
            )
        # [lanes, counters]: none may exceed the rows of a lane
        counts = np.append(words[:, LIVE:], (words[:, INDEXED] - words[:, LOW])[:, None], axis=1)
        if (words < 0).any() or (counts < 0).any() or (counts > room // len(words)).any():
            raise ValueError(f"the counters {words.tolist()} do not fit {room} rows.")
        places: dict[str, list[slice] | list[NDArray[np.int64]]] = {
            name: list(self._parts(words, column)) for name, column in _USED.items()
        }
        # rows wrap round their lane, so their positions are no slice
        places["piece_of"] = list(self._rows(words))
        for name, parts in places.items():
            table, values = getattr(self, name), state[name]
            sizes = [len(table[part]) for part in parts]
            if values.shape != (sum(sizes), *table.shape[1:]):
                raise ValueError(
                    f"{name}: expected shape {(sum(sizes), *table.shape[1:])}, got {values.shape}."
                )
            for part, rows in zip(parts, np.split(values, np.cumsum(sizes)[:-1]), strict=True):
                table[part] = rows
        # last: until then the counters say that nothing is there
        self.words[:] = words

    def _parts(self, words: NDArray[np.int64], column: int) -> Iterator[slice]:
        """The used slots of a table, lane by lane."""
        capacity = len(self.live) // len(words)
        for lane, count in enumerate(words[:, column].tolist()):
            yield slice(lane * capacity, lane * capacity + count)

    def _rows(self, words: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """The positions of the indexed rows, lane by lane."""
        capacity = len(self.live) // len(words)
        for lane, row in enumerate(words.tolist()):
            yield np.arange(row[LOW], row[INDEXED]) % capacity + lane * capacity


def positions_of(numbers: NDArray[np.int64], capacity: int, lanes: int) -> NDArray[np.int64]:
    """The positions of row ids."""
    if lanes == 1:
        return numbers % capacity
    return (numbers & LANE_MASK) % capacity + (numbers >> LANE_SHIFT) % lanes * capacity


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

    def rows_of(self, array: NDArray[Number], first: int, count: int) -> NDArray[Number]:
        """The entries of an array by position for rows from an id on, round the lane's end."""
        start, base = (first - self.first_number) % self.capacity, self.base
        found = array[base + start : base + min(start + count, self.capacity)]
        if len(found) == count:
            return found
        return np.concatenate((found, array[base : base + count - len(found)]))
