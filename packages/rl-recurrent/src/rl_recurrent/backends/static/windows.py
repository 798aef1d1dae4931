"""Segments laid out in shapes that depend on the size of the batch alone, without a host sync."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """Columns of rows: a window of L rows each, and the rest of the segments that start in it."""

    # Column k holds rows k L to k L + steps. It owns the segments that start in its first L rows;
    # its other rows are computed and discarded.

    rows: Tensor  # row in each cell, int64 [steps, K]; the last row in cells past the end
    is_real: Tensor  # whether the column owns that row, bool [steps, K, 1]
    is_first: Tensor  # whether a segment of the column starts there, bool [steps, K, 1]
    cells: Tensor  # cell of each row, flattened, int64 [M]
    targets: Tensor  # the row of an owned cell, M in other cells, int64 [steps, K]

    @classmethod
    def of(cls, start: Tensor, length: int, steps: int) -> Windows:
        """Lay out the rows of segments that start at ``start``, bool ``[M]``."""
        # steps of 2 L - 1 are enough for any segments of at most L rows
        size = start.shape[0]
        columns = -(-size // length)
        numbers = torch.arange(size, device=start.device)
        # first row of each row's segment: the largest start so far
        firsts = torch.where(start, numbers, 0).cummax(0).values
        owner = firsts // length  # column of each row
        times = numbers - owner * length
        fits = (numbers - firsts < length) & (times < steps)
        # on CUDA the device reports this later, without a host sync
        torch._assert_async(fits.all(), f"a segment is longer than max_length, which is {length}")
        grid = torch.arange(steps, device=start.device)[:, None]
        ahead = grid + length * torch.arange(columns, device=start.device)
        rows = ahead.clamp(max=size - 1)
        mine = owner[rows] == torch.arange(columns, device=start.device)
        is_real = mine & (ahead < size)
        is_first = (is_real & start[rows]).unsqueeze(-1)
        targets = torch.where(is_real, rows, size)
        return cls(rows, is_real.unsqueeze(-1), is_first, times * columns + owner, targets)
