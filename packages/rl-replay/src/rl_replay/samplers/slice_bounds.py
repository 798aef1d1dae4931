"""Where the slices of a sample are in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rl_replay.trajectories.search import even_length

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Slices:
    """The slices of a sample, end to end; a padded one ends in copies of its last row."""

    lengths: Ints  # int64 [S], real rows of each
    padded_to: int | None = None  # Rows of each with its padding; None if there is none

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def rows(self) -> int:
        """Rows of the sample, padding among them."""
        each = self._each
        return int(self.lengths.sum()) if each is None else each * len(self)

    @cached_property
    def starts(self) -> Ints:
        """The first row of each, int64 `[S]`."""
        each = self._each
        if each is not None:
            return _even(len(self), each).starts.copy()
        starts: Ints = self.lengths.cumsum() - self.lengths
        return starts

    @property
    def lasts(self) -> Ints:
        """The last real row of each, int64 `[S]`."""
        if self.padded_to is None and self._each is not None:
            return _even(len(self), self._each).lasts.copy()
        lasts: Ints = self.starts + self.lengths - 1
        return lasts

    @property
    def ids(self) -> Ints:
        """The slice of each row, int64 `[rows]`, a new array every time."""
        each = self._each
        if each is None:
            return np.arange(len(self)).repeat(self.lengths)
        return _even(len(self), each).ids.copy()

    @cached_property
    def _each(self) -> int | None:
        """Rows of each slice in the sample; None where they differ."""
        return even_length(self.lengths) if self.padded_to is None else self.padded_to

    @cached_property
    def mask(self) -> Flags:
        """Which rows are no padding, bool `[rows]`."""
        if self.padded_to is None:
            return np.ones(self.rows, dtype=np.bool_)
        mask: Flags = (np.arange(self.padded_to) < self.lengths[:, None]).reshape(-1)
        return mask

    def pad(self, values: Ints, length: int) -> tuple[Ints, Slices]:
        """Lay every slice out to the same length, repeating its last value."""
        places = np.minimum(np.arange(length), self.lengths[:, None] - 1) + self.starts[:, None]
        return values.take(places.reshape(-1)), Slices(self.lengths, length)

    def proved(self, numbers: Ints, back: NDArray[np.integer]) -> Flags:
        """Which slices are runs of rows that each continue the one before, bool `[S]`."""
        # What a reader in another process was told may have changed while it read. It asks this
        # after the rows are gathered, and whether their numbers still stand.
        joined = np.ones(len(numbers), dtype=np.bool_)
        distances = np.diff(numbers)
        # a torn table may name one row again and again, and that row may continue none
        joined[1:] = (back[1:] == distances) & (distances > 0)
        joined |= ~self.mask
        joined[self.starts] = True
        return np.logical_and.reduceat(joined, self.starts)

    def rows_of(self, chosen: Flags) -> Flags:
        """The rows of some slices, bool `[rows]`."""
        rows: Flags = chosen[self.ids]
        return rows

    def only(self, chosen: Flags) -> Self:
        """Some of the slices, laid end to end."""
        return type(self)(self.lengths[chosen], self.padded_to)

    def and_then(self, other: Self) -> Self:
        """These slices and those of another sample after them."""
        return type(self)(np.concatenate((self.lengths, other.lengths)), self.padded_to)


class _Even(NamedTuple):
    """Where slices of one length lie, for every sample that has such; only copies are given out."""

    starts: Ints
    lasts: Ints
    ids: Ints


@lru_cache(maxsize=16)
def _even(count: int, each: int) -> _Even:
    starts = np.arange(0, count * each, each)
    return _Even(starts, starts + each - 1, np.arange(count).repeat(each))
