"""Segments laid out in shapes that depend on the size of the batch alone, without a host sync."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """Columns of L rows each, every one running on to the end of the segments that start in it.

    Column k holds rows ``k L`` to ``k L + steps``. Of these it owns the segments that start in its
    first L rows; what else it meets is computed and thrown away.

    Attributes:
        rows: row in each cell, int64 ``[steps, K]``, the last row where there is none.
        is_real: whether the column owns that row, bool ``[steps, K, 1]``.
        is_first: whether a segment of the column starts there, bool ``[steps, K, 1]``.
        cells: cell of each row, flattened, int64 ``[M]``.
        targets: the row where it is owned, M elsewhere, int64 ``[steps, K]``.

    Example:
        >>> start = torch.tensor([True, False, True, False, False])
        >>> windows = Windows.of(start, length=3, steps=5)
        >>> windows.rows.T.tolist(), windows.cells.tolist()
        ([[0, 1, 2, 3, 4], [3, 4, 4, 4, 4]], [0, 2, 4, 6, 8])
    """

    rows: Tensor
    is_real: Tensor
    is_first: Tensor
    cells: Tensor
    targets: Tensor

    @classmethod
    def of(cls, start: Tensor, length: int, steps: int) -> Windows:
        """Lay rows out.

        Args:
            start: first row of each segment, bool ``[M]``.
            length: rows of a window, L, at least as many as the longest segment has.
            steps: rows of a column; ``2 L - 1`` is always enough.

        Returns:
            The windows.

        Raises:
            RuntimeError: a segment runs over the end of its column. On CUDA the device reports it
                later.

        Example:
            >>> Windows.of(torch.tensor([True, False]), 1, 1)
            Traceback (most recent call last):
            RuntimeError: a segment is longer than max_length, which is 1
        """
        size = start.shape[0]
        columns = -(-size // length)
        numbers = torch.arange(size, device=start.device)
        firsts = torch.where(start, numbers, 0).cummax(0).values
        owner = firsts // length  # column of each row
        times = numbers - owner * length
        fits = (numbers - firsts < length) & (times < steps)
        torch._assert_async(fits.all(), f"a segment is longer than max_length, which is {length}")
        grid = torch.arange(steps, device=start.device)[:, None]
        ahead = grid + length * torch.arange(columns, device=start.device)
        rows = ahead.clamp(max=size - 1)
        mine = owner[rows] == torch.arange(columns, device=start.device)
        is_real = mine & (ahead < size)
        is_first = (is_real & start[rows]).unsqueeze(-1)
        targets = torch.where(is_real, rows, size)
        return cls(rows, is_real.unsqueeze(-1), is_first, times * columns + owner, targets)
