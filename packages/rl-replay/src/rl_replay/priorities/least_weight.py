"""The lowest weight of a tree, and one of the leaves that have it."""

from __future__ import annotations

import numpy as np
import torch

from rl_replay.priorities.tree import PriorityTree
from rl_replay.storages.ring import Ring
from rl_tensordict.types import Ints


class LeastWeight:
    """The lowest weight above 0, kept while leaves change."""

    # A row of the lowest weight is drawn in at most one of N draws, and overwritten once in a
    # revolution of the ring: so the search among all rows is rare.

    def __init__(self) -> None:
        self._position, self._weight = -1, 0.0

    def forget(self) -> None:
        """Looks at all leaves the next time."""
        self._position = -1

    def note(self, tree: PriorityTree, positions: Ints | slice) -> None:
        """Takes note of leaves that were set, if it is known."""
        if self._position < 0:
            return
        weights = tree.weights[positions]
        if not len(weights):
            return
        drawn = np.where(weights > 0, weights, np.float32(np.inf))  # 0: never drawn
        lowest = int(drawn.argmin())
        if drawn[lowest] <= self._weight:
            first = positions.start + lowest if isinstance(positions, slice) else positions[lowest]
            self._position, self._weight = int(first), float(weights[lowest])

    def find(self, tree: PriorityTree, ring: Ring) -> float:
        """The lowest weight."""
        weights = tree.weights
        if self._position < 0 or weights[self._position] != self._weight:
            self._weight = float(weights[weights > 0].min())
            rows = np.flatnonzero(weights == np.float32(self._weight))
            rows = rows[rows < ring.capacity]
            # of several the one that is overwritten last
            last = ring.numbers_at(torch.from_numpy(rows)).argmax()
            self._position = int(rows[last])
        return self._weight
