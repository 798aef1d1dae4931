"""How the rows of one extend lie: which of them are neighbours in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Extent:
    """Rows laid out flat, with the distance between two that are neighbours in time.

    Row i has a later neighbour at i + stride, unless it is the last of its run.

    Attributes:
        count: Rows.
        stride: Flat distance between neighbours in time.
        length: Rows of one run, from which nothing leads on to the next one.
        named: Whether the caller says that the dimension is time, so that nothing is compared.

    Example:
        >>> batch_of_two_environments = Extent.of((2, 3), dim_extend=0)
        >>> earlier, later = batch_of_two_environments.neighbours()
        >>> list(zip(earlier.tolist(), later.tolist()))
        [(0, 1), (1, 2), (3, 4), (4, 5)]
    """

    count: int
    stride: int
    length: int
    named: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, shape: tuple[int, ...], dim_extend: int, *, named: bool = False) -> Self:
        """The extent of a batch whose last dimension is time.

        Args:
            shape: `[*B, T]`, the batch as it was given.
            dim_extend: The dimension that is brought to the front before the rows are laid flat.
            named: Whether the last dimension is named so.

        Example:
            >>> Extent.of((4, 7), dim_extend=1)
            Extent(count=28, stride=4, length=7)
        """
        count = int(np.prod(shape))
        time_first = 0 < dim_extend == len(shape) - 1
        return cls(count, count // shape[-1] if time_first else 1, shape[-1], named)

    def inside(self) -> NDArray[np.bool_] | None:
        """For each pair of rows i and i + stride whether both lie in one run; None where all do.

        Returns:
            bool `[count - stride]`, or None.

        Example:
            >>> Extent(6, 1, 3).inside().tolist()
            [True, True, False, True, True]
        """
        if self.stride * self.length == self.count:
            return None
        rows = np.arange(max(self.count - self.stride, 0))
        inside: NDArray[np.bool_] = (rows // self.stride) % self.length != self.length - 1
        return inside

    def neighbours(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows that have a later neighbour, and those neighbours, each int64 `[pairs]`.

        Example:
            >>> Extent(4, 2, 2).neighbours()
            (array([0, 1]), array([2, 3]))
        """
        earlier = np.arange(max(self.count - self.stride, 0))
        inside = self.inside()
        earlier = earlier if inside is None else earlier[inside]
        return earlier, earlier + self.stride
