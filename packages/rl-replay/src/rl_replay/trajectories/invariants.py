"""Comparison of a trajectory index with a row-by-row reading of all links."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rl_replay.trajectories.tables import (
    END,
    INDEXED,
    LIVE,
    LONE,
    LOW,
    PIECES,
    PLACE,
    START,
    STEPS,
    TrajectoryTables,
    positions_of,
)
from rl_slabs.internals import LANE_SHIFT
from rl_tensordict.types import Ints


class Queries(Protocol):
    """What is asked of an index."""

    capacity: int
    lanes: int
    tables: TrajectoryTables

    def lengths_of(self, slots: Ints) -> Ints:
        """Rows of some trajectories."""
        ...

    def rows(self, slots: Ints, offsets: Ints, lengths: Ints) -> Ints:
        """The row ids of slices."""
        ...

    def locate(self, numbers: Ints) -> tuple[Ints, Ints]:
        """The trajectory of each row, and the row's offset in it."""
        ...


def check_invariants(index: Queries, back: NDArray[np.integer]) -> None:
    """Raises if the tables of an index contradict the links."""
    for lane in range(index.lanes):
        wanted = walk_predecessors(index, lane, back)
        base = lane * index.capacity
        words = index.tables.words[lane]
        slots = index.tables.live[base : base + words[LIVE]].astype(np.int64)
        lengths = index.lengths_of(slots)
        numbers = index.rows(slots, np.zeros_like(slots), lengths)
        found = np.split(numbers, lengths.cumsum()[:-1]) if len(slots) else []
        _require(
            "trajectories", sorted(map(tuple, wanted)), sorted(tuple(f.tolist()) for f in found)
        )
        _require("steps", sum(map(len, wanted)), int(words[STEPS]))
        located, offsets = index.locate(numbers)
        _require("slots", slots.repeat(lengths).tolist(), located.tolist())
        _require("offsets", [i for n in lengths for i in range(n)], offsets.tolist())
        # each on its own, which takes the jumps that a whole trajectory does not
        singly = index.rows(located, offsets, np.ones_like(offsets))
        _require("single rows", numbers.tolist(), singly.tolist())
        _require(
            "places",
            # a trajectory names its place in the list of live ones
            list(range(base, base + len(slots))),
            index.tables.trajectories[slots, PLACE].tolist(),
        )
        places = positions_of(numbers, index.capacity, index.lanes)
        # pieces that no row refers to are free, whatever they hold
        used = np.unique(index.tables.piece_of[places])
        pieces = index.tables.pieces[used]
        _require("pieces", len(used), int(words[PIECES]))
        _require(
            "one-row pieces", int((pieces[:, END] - pieces[:, START] == 1).sum()), int(words[LONE])
        )


def walk_predecessors(index: Queries, lane: int, back: NDArray[np.integer]) -> list[list[int]]:
    """The row ids of every trajectory of a lane, read link by link."""
    found: dict[int, list[int]] = {}  # by the last row
    first = lane << LANE_SHIFT
    words = index.tables.words[lane]
    for number in range(first + int(words[LOW]), first + int(words[INDEXED])):
        distance = int(back[lane * index.capacity + (number - first) % index.capacity])
        # -1 is padding, 0 a row without a predecessor
        if distance >= 0:
            chain = found.pop(number - distance, []) if distance else []
            found[number] = [*chain, number]
    return list(found.values())


def _require(what: str, wanted: object, found: object) -> None:
    if wanted != found:
        raise AssertionError(f"{what}: the rows say {wanted}, the index says {found}.")
