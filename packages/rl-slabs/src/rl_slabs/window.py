"""The rows that could be read at one moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True)
class Window:
    """The published rows of every lane at one moment, oldest first within a lane.

    Attributes:
        first: The number of the oldest row of each lane, `[lanes]`.
        counts: How many rows each lane has, `[lanes]`.

    Example:
        >>> window = Window(np.array([3]), np.array([5]))
        >>> len(window), window.numbers(torch.tensor([0, 4]))
        (5, tensor([3, 7]))
    """

    first: NDArray[np.int64]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.counts.sum())

    def numbers(self, places: torch.Tensor) -> torch.Tensor:
        """The numbers of the rows at some places, counted through all lanes.

        Args:
            places: int64 in `[0, len(window))`, any shape.

        Returns:
            Row numbers, the shape of `places`.

        Raises:
            ValueError: A place outside the window.

        Example:
            >>> Window(np.array([3]), np.array([5])).numbers(torch.tensor([[1]]))
            tensor([[4]])
        """
        if places.numel():
            low, high = (int(bound) for bound in torch.aminmax(places))
            if low < 0 or high >= len(self):
                raise ValueError(
                    f"places must lie in [0, {len(self)}), the rows that are published: got "
                    f"{low} to {high}."
                )
        return self._numbers(places)

    def draw(self, count: int, *, generator: torch.Generator | None = None) -> torch.Tensor:
        """The numbers of `count` rows, drawn uniformly and with replacement.

        Args:
            count: How many.
            generator: Where the randomness comes from; torch's own unless given.

        Returns:
            Row numbers `[count]`, int64.

        Raises:
            ValueError: The window is empty.

        Example:
            >>> Window(np.array([3]), np.array([5])).draw(256).max() < 8
            tensor(True)
        """
        total = len(self)
        if total == 0:
            raise ValueError("no row is published yet: write and publish some before drawing.")
        return self._numbers(torch.randint(total, (count,), generator=generator))

    def _numbers(self, places: torch.Tensor) -> torch.Tensor:
        if len(self.first) == 1:
            return places + int(self.first[0])
        ends = np.cumsum(self.counts)
        lane = torch.searchsorted(torch.from_numpy(ends), places, right=True)
        return torch.from_numpy(self.first - (ends - self.counts))[lane] + places
