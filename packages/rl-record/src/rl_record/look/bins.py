"""Counts of values between a least and a greatest one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

COUNT = 40


@dataclass(frozen=True)
class Bins:
    """How many values are in each of some ranges of equal width; the last holds its upper edge."""

    # float64 [K + 1], ascending; all equal for a single value
    edges: NDArray[np.float64]
    counts: NDArray[np.int64]  # int64 [K]

    @classmethod
    def of(cls, values: NDArray[Any], count: int = COUNT) -> Bins:
        """Count finite values; few whole numbers get a bin each, with the number in the middle."""
        found = np.asarray(values, np.float64).reshape(-1)
        found = found[np.isfinite(found)]
        if not found.size:
            return cls(np.zeros(1), np.zeros(0, np.int64))
        low, high = float(found.min()), float(found.max())
        if high - low < count and bool((found == np.floor(found)).all()) and abs(low) < 1 << 52:
            edges = np.arange(low, high + 2) - 0.5
            places = (found - low).astype(np.int64)
            return cls(edges, np.bincount(places, minlength=len(edges) - 1))
        # halves, since the width of all of float64 is no number of it
        half, width = found / 2 - low / 2, high / 2 - low / 2
        if not width > 0:  # one value, or two that no number is between
            return cls(np.array([low, high]), np.array([found.size]))
        places = np.minimum((half / width * count).astype(np.int64), count - 1)
        edges = 2 * np.minimum(low / 2 + width * np.linspace(0, 1, count + 1), high / 2)
        edges[[0, -1]] = low, high  # what rounding moved
        return cls(edges, np.bincount(places, minlength=count))
