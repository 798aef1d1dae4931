"""Priorities as callers give them: one number, one a row, or several a row."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rl_tensordict import UnfitValue, as_tensor
from rl_tensordict.arguments import shown

_INFINITE = 0x7F800000  # the bits of the float32 inf

PriorityReduction = Literal["max", "min", "median", "mean"]


def as_priorities(priority: Any, rows: int) -> NDArray[np.float32]:
    """Priorities of rows, checked: one number for all, or `[rows]`."""
    if type(priority) is torch.Tensor and priority.dtype is torch.float32 and priority.is_cpu:
        alone = priority.detach() if priority.requires_grad else priority
        plain: NDArray[np.float32] = alone.numpy()
        # as uint32 bits, negative and non-finite numbers are larger than all others
        fits = plain.shape == (rows,) and rows
        if fits and np.maximum.reduce(plain.view(np.uint32)) < _INFINITE:
            return plain
    found = _real_numbers(priority)
    if found.ndim > 1 and found.shape[0] == rows == found.numel():
        found = found.reshape(rows)
    if found.ndim and found.shape != (rows,):
        raise UnfitValue(
            f"expected a priority for each of {rows} rows, [{rows}], or one for all: got "
            f"{list(found.shape)}."
        )
    made: NDArray[np.float32] = found.float().expand(rows).cpu().numpy()
    # one comparison finds NaN and negative numbers, the other one what is infinite
    if rows and not (made.min() >= 0 and made.max() < np.inf):
        bad = int(np.flatnonzero(~((made >= 0) & (made < np.inf)))[0])
        raise ValueError(
            f"priority {bad} is {float(made[bad])}: priorities are at least 0 and finite. Take "
            "td_error.abs()."
        )
    return made


def _real_numbers(priority: Any) -> torch.Tensor:
    """A tensor of what a caller gave, which is real."""
    try:
        found = as_tensor(priority).detach()
    except (TypeError, RuntimeError, ValueError):
        found = None
    if found is None or found.is_complex():
        raise TypeError(
            f"priorities are real numbers or a tensor of them, got {shown(priority)}: give one for "
            "all rows, or one for each."
        ) from None
    return found


def reduced(priority: torch.Tensor, rows: int, reduction: PriorityReduction) -> torch.Tensor:
    """One priority a row, of a tensor `[rows, ...]`."""
    if priority.ndim <= 1 or priority.shape[0] != rows:
        return priority
    flat = priority.reshape(rows, -1)
    if flat.shape[1] == 1:
        return flat[:, 0]
    if reduction == "max":
        return flat.amax(1)
    if reduction == "min":
        return flat.amin(1)
    return flat.median(1).values if reduction == "median" else flat.float().mean(1)
