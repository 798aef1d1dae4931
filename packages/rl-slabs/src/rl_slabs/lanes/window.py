"""The rows that could be read at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_tensordict import CPU, UnfitValue


@dataclass(frozen=True)
class Window:
    """The published rows of every lane at one moment, oldest first within a lane.

    Attributes:
        first: For each lane, the number of its oldest row.
        counts: For each lane, how many rows it has.

    Example:
        >>> window = Window((3,), (5,))
        >>> len(window), window.numbers(torch.tensor([0, 4]))
        (5, tensor([3, 7]))
    """

    first: tuple[int, ...]
    counts: tuple[int, ...]

    def __len__(self) -> int:
        return sum(self.counts)

    def numbers(self, places: torch.Tensor) -> torch.Tensor:
        """The numbers of the rows at some places, counted through all lanes.

        Args:
            places: int64 in `[0, len(window))`, any shape.

        Returns:
            Row numbers, the shape of `places`.

        Raises:
            ValueError: A place outside the window.

        Example:
            >>> Window((3,), (5,)).numbers(torch.tensor([[1]]))
            tensor([[4]])
        """
        numbers = isinstance(places, torch.Tensor)
        if not numbers or places.is_floating_point() or places.is_complex():
            raise TypeError(f"places must be a tensor of integers: got {places!r}.")
        if places.numel():
            low, high = (int(bound) for bound in torch.aminmax(places))
            if low < 0 or high >= len(self):
                raise ValueError(
                    f"places must be in [0, {len(self)}), the rows that are published: got "
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
            >>> Window((3,), (5,)).draw(256).max() < 8
            tensor(True)
        """
        counts = self.counts
        total = counts[0] if len(counts) == 1 else sum(counts)
        if total == 0:
            raise UnfitValue("there is no row to draw: write some first.")
        try:
            places = torch.randint(total, (count,), generator=generator, device=CPU)
        except (TypeError, RuntimeError) as error:
            raise ValueError(f"cannot draw {count!r} rows: {error}") from None
        # one lane from its first row on: what most buffers are, and a frame less for each sample
        return places if self.first == _START else self._numbers(places)

    def _numbers(self, places: torch.Tensor) -> torch.Tensor:
        if len(self.first) == 1:
            return places + self.first[0] if self.first[0] else places
        ends = list(accumulate(self.counts))
        begins = [0, *ends[:-1]]
        shifts = [number - begin for number, begin in zip(self.first, begins, strict=True)]
        found = as_array(places)
        lane = np.array(ends).searchsorted(found, "right")
        return as_tensor(np.array(shifts).take(lane) + found, places)


_START = (0,)


def as_array(numbers: torch.Tensor) -> NDArray[np.int64]:
    """Row numbers as a numpy array: on few numbers numpy takes a third of torch's time."""
    if getattr(numbers, "dtype", None) is not torch.int64:
        raise TypeError(
            f"numbers of rows are an int64 tensor, got {getattr(numbers, 'dtype', type(numbers))}. "
            "Use torch.as_tensor(numbers).long()."
        )
    array: NDArray[np.int64] = numbers.numpy() if numbers.is_cpu else numbers.cpu().numpy()
    return array


def as_tensor(array: NDArray[Any] | np.generic, like: torch.Tensor) -> torch.Tensor:
    """The tensor of an array, or of a numpy scalar (no dimensions)."""
    tensor = torch.from_numpy(np.asarray(array))
    return tensor if like.is_cpu else tensor.to(like.device)
