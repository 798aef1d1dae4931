"""Count, mean and squared deviations of rows, combined from parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Running moments of the rows of one leaf, in double precision."""

    count: float  # how many rows, or what is left of that number after decay
    mean: Floats  # of the rows, in the shape of one
    squares: Floats  # sum of the squared distances from the mean, likewise

    @classmethod
    def none(cls, shape: Sequence[int]) -> Moments:
        """Moments of no rows; `shape` is that of one row."""
        return cls(0.0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Moments:
        """Moments of rows ``[R, ...]``, R at least 1."""
        exact, count = rows.astype(np.float64, copy=False), len(rows)
        mean = np.asarray(np.add.reduce(exact) / count)
        return cls(float(count), mean, np.asarray(np.add.reduce(np.square(exact - mean))))

    @classmethod
    def merged(cls, parts: Sequence[Moments]) -> Moments:
        """Moments of the rows of all parts, at least one part."""
        # With n the sum of the counts: mean = Σ nᵢ meanᵢ / n, and squares = Σ squaresᵢ + nᵢ (meanᵢ
        # - mean)², as Chan, Golub and LeVeque give it.
        full = [part for part in parts if part.count]
        if len(full) < 2:
            return full[0] if full else parts[0]
        count = sum(part.count for part in full)
        # shifted by the first mean: a mean far from 0 would cancel the digits of small differences
        shifts = [part.mean - full[0].mean for part in full]
        shift, squares = np.zeros_like(full[0].mean), np.zeros_like(full[0].mean)
        for part, distance in zip(full, shifts, strict=True):
            shift = shift + part.count / count * distance
        for part, distance in zip(full, shifts, strict=True):
            squares = squares + part.squares + part.count * np.square(distance - shift)
        return cls(count, np.asarray(full[0].mean + shift), np.asarray(squares))

    def joined(self, other: Moments) -> Moments:
        """Moments of these rows and others."""
        if not (self.count and other.count):
            return self if self.count else other
        count = self.count + other.count
        distance = other.mean - self.mean
        share = other.count / count
        squares = self.squares + other.squares + np.square(distance) * (self.count * share)
        return Moments(count, np.asarray(self.mean + distance * share), np.asarray(squares))

    def decayed(self, decay: float) -> Moments:
        """Moments in which every row has `decay` times its weight."""
        if decay == 1:
            return self
        return Moments(self.count * decay, self.mean, self.squares * decay)

    @property
    def std(self) -> Floats:
        """Standard deviation of the rows, in the shape of one; 0 without any."""
        found: Floats = np.sqrt(self.squares / max(self.count, np.finfo(np.float64).tiny))
        return found

    def packed(self) -> Floats:
        """Count, mean and squares in one row, ``[1 + 2 F]``."""
        return np.concatenate([[self.count], self.mean.ravel(), self.squares.ravel()])

    @classmethod
    def unpacked(cls, row: Floats, shape: Sequence[int]) -> Moments:
        """The moments that `packed` wrote; `shape` is that of a leaf."""
        size = len(row) // 2
        mean, squares = row[1 : 1 + size].reshape(shape), row[1 + size :].reshape(shape)
        return cls(float(row[0]), mean.copy(), squares.copy())
