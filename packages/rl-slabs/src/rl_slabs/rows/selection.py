"""Which rows an index means."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

RowIndex = int | slice | torch.Tensor | NDArray[np.integer]
"""One row, a slice of rows, or integers of any shape, which becomes the batch shape."""


Selection = tuple[int | slice | torch.Tensor, torch.Size]
"""A row, a slice without negative ends or rows `[M]`; and the batch shape of what they hold."""


def select(rows: RowIndex, count: int) -> Selection:
    """Normalises an index into `count` rows. Values in a tensor are not checked."""
    if isinstance(rows, np.ndarray):
        if rows.dtype.kind not in "iub":
            raise TypeError(f"rows must be integers, got {rows.dtype}. Use rows.astype(int).")
        rows = torch.from_numpy(rows)
    if isinstance(rows, torch.Tensor):
        if rows.dtype is not torch.int64:
            rows = _as_int64(rows)
        shape = rows.shape
        return rows if len(shape) == 1 else rows.reshape(-1), shape  # [M], and the caller's [*B]
    if isinstance(rows, slice):
        return _select_slice(rows, count)
    # True is an integer of Python's, and a class has `__index__` without being a number
    if isinstance(rows, bool | type) or not hasattr(rows, "__index__"):
        raise TypeError(
            f"rows must be an integer, a slice, an int64 tensor or an integer numpy array, got "
            f"{type(rows).__name__}. Use torch.as_tensor(rows)."
        )
    row = rows.__index__()
    if not 0 <= row < count:
        raise ValueError(f"rows must be in [0, {count}), got {row}. {_from_the_end(count)}")
    return row, torch.Size()


def require_inside(index: torch.Tensor, count: int) -> None:
    """Raise `ValueError` unless every row is in `[0, count)`."""
    if index.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(index))  # both in one pass
    if low < 0 or high >= count:
        raise ValueError(
            f"rows must be in [0, {count}), got {low} to {high}. {_from_the_end(count)}"
        )


def _as_int64(rows: torch.Tensor) -> torch.Tensor:
    if rows.dtype is torch.bool:
        raise TypeError(
            f"rows must be integers, got a mask of shape {list(rows.shape)}. "
            "Use mask.nonzero().squeeze(-1)."
        )
    if rows.is_floating_point() or rows.is_complex():
        raise TypeError(f"rows must be integers, got {rows.dtype}. Use rows.long().")
    return rows.long()


def _select_slice(rows: slice, count: int) -> Selection:
    start = 0 if rows.start is None else rows.start
    stop = count if rows.stop is None else rows.stop
    step = 1 if rows.step is None else rows.step
    if not (0 <= start <= count and 0 <= stop <= count and step > 0):
        raise ValueError(
            f"a slice of rows must be in [0, {count}] and step forward, got {rows}. "
            f"{_from_the_end(count)}"
        )
    return slice(start, stop, step), torch.Size([len(range(start, stop, step))])


def _from_the_end(count: int) -> str:
    return f"Rows are counted from 0; the last one is {count - 1}."
