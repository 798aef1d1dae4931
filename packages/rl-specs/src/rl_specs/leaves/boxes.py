"""What values a spec's elements may take, as plain records: the `space` of a spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ContinuousBox:
    """A closed interval for each element.

    Attributes:
        low: smallest values, shape and dtype of the spec (1 where a dimension is dynamic).
        high: largest values, likewise.

    Example:
        >>> low, high = ContinuousBox(torch.zeros(2), torch.ones(2))
        >>> high
        tensor([1., 1.])
    """

    low: Tensor
    high: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        yield self.low
        yield self.high

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContinuousBox):
            return False
        return torch.equal(self.low, other.low) and torch.equal(self.high, other.high)

    def to(self, dest: Any) -> ContinuousBox:
        """Move or cast both bounds.

        Args:
            dest: a device or a dtype.

        Returns:
            A new box.
        """
        return ContinuousBox(self.low.to(dest), self.high.to(dest))

    def clone(self) -> ContinuousBox:
        """Copy both bounds."""
        return ContinuousBox(self.low.clone(), self.high.clone())


@dataclass(frozen=True)
class CategoricalBox:
    """The integers 0 to n - 1.

    Attributes:
        n: how many there are; -1 where that is not known yet.

    Example:
        >>> CategoricalBox(3)
        CategoricalBox(n=3)
    """

    n: int


@dataclass(frozen=True)
class BinaryBox:
    """Vectors of n bits.

    Attributes:
        n: how many bits.

    Example:
        >>> BinaryBox(4)
        BinaryBox(n=4)
    """

    n: int


@dataclass(frozen=True)
class BoxList:
    """One box for each column.

    Attributes:
        boxes: the boxes, in order.

    Example:
        >>> BoxList.from_nvec(torch.tensor([2, 3]))
        BoxList(boxes=(CategoricalBox(n=2), CategoricalBox(n=3)))
    """

    boxes: tuple[CategoricalBox | BoxList, ...]

    @staticmethod
    def from_nvec(nvec: Tensor) -> BoxList:
        """Write numbers of categories as boxes, nested as the tensor is.

        Args:
            nvec: integers `[..., K]`.

        Returns:
            One box for each column, one list for each row.
        """
        if nvec.ndim > 1:
            return BoxList(tuple(BoxList.from_nvec(row) for row in nvec))
        return BoxList(tuple(CategoricalBox(n) for n in nvec.tolist()))

    def __iter__(self) -> Iterator[CategoricalBox | BoxList]:
        return iter(self.boxes)

    def __len__(self) -> int:
        return len(self.boxes)
