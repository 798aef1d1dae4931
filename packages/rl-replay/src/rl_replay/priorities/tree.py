"""A tree of weights, from which leaves are drawn in proportion to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_layout.internals import load_compiled
from rl_replay.priorities import numpy_tree
from rl_replay.priorities.numpy_tree import BLOCK, WEIGHT_HALF
from rl_tensordict.types import Flags, Ints

MOST_ROOTS = 4_096
"""Sums of the highest level, through which a draw goes one by one."""

_NUMBA = "rl_replay.priorities.numba_tree"


class Drawn(NamedTuple):
    """Leaves that were drawn."""

    positions: Ints  # int64 [n]; -1 where the sums promised weight that the leaves do not have
    probabilities: NDArray[np.float64]  # [n], with which each was really drawn


class DrawnLeaves(NamedTuple):
    """Leaves that were drawn, and the rows that they are of."""

    positions: Ints  # int64 [n]; -1 as in `Drawn`
    probabilities: NDArray[np.float64]  # [n]
    row_ids: Ints  # int64 [n]
    good: Flags  # [n], whether the row is still stored
    bad: int  # How many do not


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """The sizes of a tree's levels."""

    leaves: int  # leaves, in whole blocks
    # where each level of sums begins in their array, the lowest first, then the end
    begins: tuple[int, ...]

    @classmethod
    def of(cls, capacity: int) -> TreeLayout:
        """The layout for so many leaves."""
        size = leaves = -(-capacity // BLOCK) * BLOCK
        begins = [0]
        while True:
            size //= BLOCK
            if size <= MOST_ROOTS:
                return cls(leaves, (*begins, begins[-1] + size))
            size = -(-size // BLOCK) * BLOCK
            begins.append(begins[-1] + size)


class PriorityTree:
    """Leaves of one 64-bit word each, and sums of them, in memory that may be shared."""

    # A word holds the lower half of a row id + 1 and a weight, so that one store changes both and
    # no reader sees one of them without the other. Sums are computed from their children, never
    # added to. They lead a draw to a leaf, and its probability is computed from the weights on the
    # way: it is the true one, also where another process is about to change them.
    # words: uint64 `[layout.leaves]`, zeros at first.
    # sums: float64 `[layout.begins[-1]]`, zeros at first.

    def __init__(
        self, layout: TreeLayout, words: NDArray[np.uint64], sums: NDArray[np.float64]
    ) -> None:
        self.layout = layout
        self.words, self.sums = words, sums
        # the halves of the words that are of row ids
        self.ids = words.view(np.uint32)[1 - WEIGHT_HALF :: 2]
        self.weights = words.view(np.float32)[WEIGHT_HALF::2]  # the other halves
        # where each level of sums begins, as `layout` has it
        self.begins = np.array(layout.begins, dtype=np.int64)

    @classmethod
    def private(cls, capacity: int) -> PriorityTree:
        """A tree in memory of this process."""
        layout = TreeLayout.of(capacity)
        return cls(layout, np.zeros(layout.leaves, np.uint64), np.zeros(layout.begins[-1]))

    @property
    def total(self) -> float:
        """The sum of all weights."""
        roots = self.sums[self.layout.begins[-2] :]
        return float(roots.cumsum()[-1])

    def draw(self, fractions: NDArray[np.float64]) -> Drawn:
        """Leaves at some fractions of the total, float64 `[n]` in [0, 1)."""
        return Drawn(*self.loops.draw(self.words, self.sums, self.begins, fractions))

    def draw_rows(
        self, fractions: NDArray[np.float64], standing: Ints, lane_size: int, *, strata: bool
    ) -> DrawnLeaves:
        """`draw`, and the row of each leaf; with `strata` each from a part of its own.

        `standing` has the first row id and the count of each lane, int64 `[2, lanes]`.
        """
        arrays = (self.words, self.sums, self.begins, fractions)
        return DrawnLeaves(*self.loops.draw_rows(*arrays, strata, standing, lane_size))

    def update(
        self, positions: Ints, ids: NDArray[np.uint32], weights: NDArray[np.float32]
    ) -> None:
        """Sets leaves; of one that comes twice the last weight counts."""
        self.loops.update(self.words, self.sums, self.begins, positions, ids, weights)

    def put(
        self,
        begin: int,
        ids: NDArray[np.uint32],
        weights: NDArray[np.float32],
        where: NDArray[np.bool_] | bool = True,
    ) -> None:
        """Sets leaves that follow each other, or some of them, and the sums above."""
        words = (ids.astype(np.uint64) << np.uint64(32)) | weights.view(np.uint32)
        np.copyto(self.words[begin : begin + len(ids)], words, where=where)
        self.sum_up(begin, begin + len(ids))

    def sum_up(self, begin: int, end: int) -> None:
        """Computes the sums above some leaves that follow each other."""
        if begin < end:
            self.loops.sum_up(self.words, self.sums, self.begins, begin, end)

    @property
    def loops(self) -> Any:
        """The module of the loops: compiled ones where numba is installed."""
        return load_compiled(_NUMBA) or numpy_tree
