"""The memory of priorities: words, sums, and a few cells, of one process or of several."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_replay.priorities.tree import PriorityTree, TreeLayout
from rl_slabs import Arrays
from rl_tensordict.types import Flags, Ints, Singles

HIGHEST, ALPHA, EPOCH, CLEARED, LENGTH = range(5)
"""Cells of the board: the highest priority so far; alpha; the epoch of the rows; how often all
words were cleared; rows of a slice, 0 where rows are drawn."""

_CELLS = 8

HalfWords = NDArray[np.uint32]


class Assigned(NamedTuple):
    """What became of the priorities of some rows."""

    positions: Ints  # Of the rows, int64 [n]
    same: Flags  # [n], whose word is theirs
    known: int  # How many these are; -1 where a row does not stand, and so nothing was set
    highest: float  # The highest priority that was set


class PriorityMemory:
    """Priorities by position, and the tree of their weights."""

    def __init__(self, room: int, *, alpha: float, eps: float, shared: bool = False) -> None:
        layout = TreeLayout.of(room)
        arrays = {
            "words": ("uint64", (layout.leaves,)),
            "sums": ("float64", (layout.begins[-1],)),
            "priorities": ("float32", (layout.leaves,)),
            "startable": ("bool", (layout.leaves,)),
            "ahead": ("int32", (layout.leaves,)),
            "board": ("float64", (_CELLS,)),
        }
        memory = Arrays.shared(arrays, sparse=True) if shared else Arrays.private(arrays)
        memory["board"][:2] = 1.0, alpha
        self._adopt(memory, eps)

    def _adopt(self, memory: Arrays, eps: float) -> None:
        self.eps = eps  # what is added to each priority
        self._memory = memory
        self.is_shared = memory.kind != "private"  # whether other processes may change it
        self.board = memory["board"]  # the cells, float64
        self.priorities: Singles = memory["priorities"]  # as they were given, float32 `[room]`
        # which rows can be the first ones of slices, bool `[room]`
        self.startable: NDArray[np.bool_] = memory["startable"]
        # how far away the next row of a trajectory is, int32 `[room]`; 0 where unknown
        self.ahead: NDArray[np.int32] = memory["ahead"]
        layout = TreeLayout.of(len(self.priorities))
        # row ids and weights, (priority + eps) ** alpha
        self.tree = PriorityTree(layout, memory["words"], memory["sums"])

    def __getstate__(self) -> dict[str, Any]:
        shared = self._memory if self.is_shared else None
        return {"memory": shared, "room": self.room, "alpha": self.alpha, "eps": self.eps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        memory = state.pop("memory")
        if memory is None:  # priorities of one process: another one begins with none
            self.__init__(**state)  # type: ignore[misc]
        else:
            self._adopt(memory, state["eps"])

    @property
    def room(self) -> int:
        """Positions of rows, at most."""
        return len(self.priorities)

    @property
    def highest(self) -> float:
        """The highest priority so far; 1 before the first one."""
        return float(self.board[HIGHEST])

    @property
    def alpha(self) -> float:
        """How much priorities matter: 0 for uniform draws."""
        return float(self.board[ALPHA])

    @property
    def length(self) -> int:
        """Rows of the slices that are drawn; 0 where rows are."""
        return int(self.board[LENGTH])

    def weights_of(self, priorities: Singles) -> Singles:
        """(p + eps) ** alpha in float32, of priorities in float32."""
        raised = priorities.astype(np.float64)
        raised += self.eps
        raised **= self.alpha
        weights: Singles = raised.astype(np.float32)
        return weights

    def weights_at(self, positions: Ints) -> Singles:
        """The weights of leaves, 0 where a row cannot be the first one of a slice."""
        weights = self.weights_of(self.priorities[positions])
        if self.length:
            weights *= self.startable[positions]
        return weights

    def assign(
        self, row_ids: Ints, standing: Ints, lane_size: int, priorities: Singles
    ) -> Assigned:
        """Sets the priorities of rows whose word is theirs; of none if a row is not stored.

        `standing` has the first row id and the count of each lane, int64 `[2, lanes]`.
        """
        tree, startable = self.tree, self.startable if self.length else None
        arrays = (tree.words, tree.sums, tree.begins, self.priorities, startable)
        weights = self.weights_of(priorities)
        return Assigned(
            *tree.loops.assign(*arrays, row_ids, standing, lane_size, weights, priorities)
        )

    def allow(self, positions: Ints, row_ids: Ints, *, allowed: bool) -> None:
        """Lets rows whose word is theirs begin slices, or no more."""
        tree = self.tree
        weights = self.weights_of(self.priorities[positions])
        arrays = (tree.words, tree.sums, tree.begins, self.startable)
        tree.loops.allow(*arrays, positions, row_ids, weights, allowed)

    def take_in(self, begin: int, row_id: int, priorities: Singles) -> None:
        """Sets rows that follow each other, where the word is an older row's or empty."""
        # A word that has the id already is another process's, which may know more, and a younger
        # one that of a row which has taken the place meanwhile.
        tree, arrays = self.tree, (self.priorities, self.startable)
        none = self.length  # no row begins a slice before `allow` says so
        weights = np.zeros(len(priorities), np.float32) if none else self.weights_of(priorities)
        tree.loops.take_in(
            tree.words, tree.sums, tree.begins, *arrays, begin, row_id, weights, priorities
        )

    def shift_ids(self, by: int) -> None:
        """Lets every word be that of a row id so much higher."""
        words = self.tree.words
        words[words != 0] += np.uint64(by & 0xFFFFFFFF) << np.uint64(32)

    def raise_highest(self, priority: float) -> None:
        """Takes note of a priority that may be higher than all before."""
        if priority > self.board[HIGHEST]:
            self.board[HIGHEST] = priority

    def clear(self) -> None:
        """Forgets all rows, for every process."""
        self.tree.words[:] = 0
        self.tree.sums[:] = 0.0
        self.startable[:] = False
        self.board[CLEARED] += 1
