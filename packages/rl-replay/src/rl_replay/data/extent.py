"""How the rows of one extend lie: which of them are neighbours in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Extent:
    """Rows laid out flat, with the distance between two that are neighbours in time."""

    # Row i has a later neighbour at i + stride, unless it is the last of its run.

    count: int  # Rows
    stride: int  # Flat distance between neighbours in time
    length: int  # Rows of one run, from which nothing leads on to the next one
    # Whether the caller says that the dimension is time, so that nothing is compared
    named: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, shape: tuple[int, ...], dim_extend: int, *, named: bool = False) -> Self:
        """The extent of a batch whose last dimension is time."""
        count = int(np.prod(shape))
        time_first = 0 < dim_extend == len(shape) - 1
        return cls(count, count // shape[-1] if time_first else 1, shape[-1], named)

    def inside(self) -> NDArray[np.bool_] | None:
        """For each pair of rows i and i + stride whether both are in one run; None where all do."""
        if self.stride * self.length == self.count:
            return None
        rows = np.arange(max(self.count - self.stride, 0))
        inside: NDArray[np.bool_] = (rows // self.stride) % self.length != self.length - 1
        return inside

    def neighbours(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows that have a later neighbour, and those neighbours, each int64 `[pairs]`."""
        earlier = np.arange(max(self.count - self.stride, 0))
        inside = self.inside()
        earlier = earlier if inside is None else earlier[inside]
        return earlier, earlier + self.stride
