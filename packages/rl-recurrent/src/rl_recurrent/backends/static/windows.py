"""Segments laid out in shapes that depend on the size of the batch alone, without a host sync."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """Columns of L rows each, every one running on to the end of the segments that start in it."""

    # Column k holds rows k L to k L + steps. Of these it owns the segments that start in its first
    # L rows; what else it meets is computed and thrown away.

    rows: Tensor  # row in each cell, int64 [steps, K], the last row if there is none
    is_real: Tensor  # whether the column owns that row, bool [steps, K, 1]
    is_first: Tensor  # whether a segment of the column starts there, bool [steps, K, 1]
    cells: Tensor  # cell of each row, flattened, int64 [M]
    targets: Tensor  # the row where it is owned, M elsewhere, int64 [steps, K]

    @classmethod
    def of(cls, start: Tensor, length: int, steps: int) -> Windows:
        """Lay rows out."""
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
