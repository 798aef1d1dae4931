"""The rows of a dump in the order of their trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl_tensordict.types import Flags, Ints


@dataclass(frozen=True)
class CompactOrder:
    """Trajectories end to end, in the order of their first rows."""

    # A trajectory is a run of rows that each continue the one before, as the links say, not the
    # flags: what is cut by the end of a ring is cut here.

    lengths: Ints  # Rows of each trajectory, int64 [S]
    order: NDArray[np.int32] | None  # The place of each row by age; None if it is the same [N]

    @classmethod
    def of_links(cls, back: NDArray[np.int32], counts: Sequence[int]) -> CompactOrder:
        """The order of rows, lane by lane, the oldest first, by distances to the row before."""
        # back: The distances, 0 for rows that continue none, `[N]`.
        rows = np.arange(len(back), dtype=np.int32)
        begins = np.repeat(np.cumsum([0, *counts[:-1]]), counts).astype(np.int32)
        before = rows - back
        # the row before may be gone
        before = np.where((back > 0) & (before >= begins), before, rows)
        if bool((rows - before <= 1).all()):
            return cls(_lengths(before == rows), None)
        # each round looks twice as far ahead for the first row of the trajectory
        heads = before
        while not np.array_equal(further := heads[heads], heads):
            heads = further
        order = np.argsort(heads, kind="stable").astype(np.int32)
        return cls(_lengths((before == rows)[order]), order)


def _lengths(firsts: Flags) -> Ints:
    starts = np.flatnonzero(firsts)
    return np.diff(starts, append=len(firsts))


@dataclass(frozen=True)
class ExtraRows:
    """Places among the rows of leaves that are kept once: one row more at each trajectory's end."""

    ends: Ints  # The place of each extra row, int64 [S]

    @classmethod
    def of_lengths(cls, lengths: Ints) -> ExtraRows:
        """The places for trajectories of some lengths."""
        return cls(np.cumsum(lengths + 1) - 1)  # a trajectory of n rows takes n + 1 places

    def before(self, places: Ints) -> Ints:
        """How many extra rows come before some places, int64 of the same shape."""
        return np.searchsorted(self.ends, places, side="left")

    def is_extra(self, places: Ints, before: Ints) -> Flags:
        """Which places are extra rows; `before` is what `before` says of them."""
        # the first end that is not before a place; beyond the last one any end will do
        found: Flags = self.ends[np.minimum(before, len(self.ends) - 1)] == places
        return found
