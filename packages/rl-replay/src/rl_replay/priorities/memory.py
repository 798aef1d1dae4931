"""The memory of priorities: words, sums, and a few cells, of one process or of several."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_replay.priorities.tree import PriorityTree, TreeLayout
from rl_slabs import Arrays
from rl_tensordict.types import Flags, Ints

HIGHEST, ALPHA, EPOCH, CLEARED, LENGTH = range(5)
"""Cells of the board: the highest priority so far; alpha; the epoch of the rows; how often all
words were cleared; rows of a slice, 0 where rows are drawn."""

_CELLS = 8

Singles = NDArray[np.float32]
Words = NDArray[np.uint32]


class PriorityMemory:
    """Priorities by position, and the tree of their weights.

    Args:
        room: Positions of rows, at most.
        alpha: How much priorities matter: 0 for uniform draws.
        eps: What is added to each priority.
        shared: Whether processes that are given it have the same priorities.
    """

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
        raised = (priorities.astype(np.float64) + self.eps) ** self.alpha
        weights: Singles = raised.astype(np.float32)
        return weights

    def weights_at(self, positions: Ints) -> Singles:
        """The weights of leaves, 0 where a row cannot be the first one of a slice."""
        weights = self.weights_of(self.priorities[positions])
        if self.length:
            weights *= self.startable[positions]
        return weights

    def assign(self, positions: Ints, ids: Words, priorities: Singles) -> Flags:
        """Sets the priorities of rows whose word is theirs, and says which these are."""
        weights = self.weights_of(priorities)
        if self.length:
            weights *= self.startable[positions]
        tree = self.tree
        same: Flags = tree.loops.assign(
            tree.words, tree.sums, tree.begins, self.priorities, positions, ids, weights, priorities
        )
        return same

    def take_in(self, begin: int, ids: Words, priorities: Singles) -> None:
        """Sets rows that follow each other, where the word is an older row's or empty.

        A word that has the id already is another process's, which may know more, and a younger one
        that of a row which has taken the place meanwhile.
        """
        tree, arrays = self.tree, (self.priorities, self.startable)
        weights = np.zeros(len(ids), np.float32) if self.length else self.weights_of(priorities)
        tree.loops.take_in(
            tree.words, tree.sums, tree.begins, *arrays, begin, ids, weights, priorities
        )

    def raise_highest(self, priorities: Singles) -> None:
        """Takes note of priorities that may be higher than all before."""
        if len(priorities):
            self.board[HIGHEST] = max(self.board[HIGHEST], priorities.max())

    def clear(self) -> None:
        """Forgets all rows, for every process."""
        self.tree.words[:] = 0
        self.tree.sums[:] = 0.0
        self.startable[:] = False
        self.board[CLEARED] += 1
