"""Segments of many lengths as a few dense blocks of time."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_layout.segments import flat_views
from rl_tensordict.arguments import check_type


@dataclass(frozen=True)
class TimeBlock:
    """Steps ``start`` to ``start + K`` of the segments that are long enough.

    Attributes:
        start: position in the segments of the block's first step.
        rows: row of the batch in each cell, int64 ``[K, n]``; cells after a segment's end
            repeat its last row.
        real: which cells hold a step of their own, bool ``[K, n]``.

    Example:
        >>> TimeBlock(0, torch.tensor([[0, 2]]), torch.tensor([[True, True]])).start
        0
    """

    start: int
    rows: Tensor
    real: Tensor

    def gather(self, values: Tensor, batch_shape: torch.Size) -> Tensor:
        """Take a leaf in the shape of the block.

        Args:
            values: ``[*B, T, ...]``.
            batch_shape: ``[*B, T]``.

        Returns:
            ``[K, n, ...]``.

        Example:
            >>> block = TimeBlock(0, torch.tensor([[2, 0]]), torch.tensor([[True, True]]))
            >>> block.gather(torch.tensor([5, 6, 7]), torch.Size([3]))
            tensor([[7, 5]])
        """
        flat = flat_views.flatten(values, batch_shape)
        taken = flat.index_select(0, self.rows.flatten())
        return taken.view(*self.rows.shape, *flat.shape[1:])

    def scatter(self, block: Tensor, out: Tensor) -> None:
        """Write the block's real cells into the rows that they came from.

        Args:
            block: ``[K, n, ...]``.
            out: ``[N, ...]``, written in place.

        Example:
            >>> block = TimeBlock(0, torch.tensor([[2, 0]]), torch.tensor([[True, False]]))
            >>> block.scatter(torch.tensor([[9, 8]]), out := torch.zeros(3, dtype=torch.int64))
            >>> out
            tensor([0, 0, 9])
        """
        out[self.rows[self.real]] = block[self.real]


def time_blocks(starts: Tensor, lengths: Tensor, max_waste: float) -> list[TimeBlock]:
    """Cut segments, longest first, into blocks in which few cells are empty."""
    # Each block runs on as long as at most max_waste of its cells come after the end of their
    # segment; the next one begins with the segments that continue.
    check_type("max_waste", max_waste, float | int | np.integer | np.floating, "a share in [0, 1)")
    if not 0 <= max_waste < 1:
        msg = f"max_waste must be in [0, 1): got {max_waste}."
        raise ValueError(msg)
    blocks = []
    for first, stop, active in _cuts(lengths.cpu().numpy(), max_waste):
        steps = torch.arange(first, stop, device=starts.device)[:, None]  # [K, 1]
        lasts = lengths[:active] - 1
        rows = starts[:active] + torch.minimum(steps, lasts)
        blocks.append(TimeBlock(first, rows, steps <= lasts))
    return blocks


def _cuts(lengths: np.ndarray, max_waste: float) -> list[tuple[int, int, int]]:
    """First step, end and number of segments of each block."""
    longest = int(lengths[0]) if len(lengths) else 0
    active = len(lengths) - np.searchsorted(lengths[::-1], np.arange(longest), side="right")
    real = np.concatenate([[0], np.cumsum(active)])  # real cells before each step
    found, first = [], 0
    while first < longest:
        stop = _stop(real, active, first, max_waste)
        found.append((first, stop, int(active[first])))
        first = stop
    return found


def _stop(real: np.ndarray, active: np.ndarray, first: int, max_waste: float) -> int:
    """The end of the longest block from a step on; its waste grows with it."""

    def waste(stop: int) -> float:
        return 1 - float(real[stop] - real[first]) / (int(active[first]) * (stop - first))

    ends = range(first + 1, len(real))
    # rounding must not end a block that wastes nothing
    return first + bisect_right(ends, max_waste + 1e-9, key=waste)
