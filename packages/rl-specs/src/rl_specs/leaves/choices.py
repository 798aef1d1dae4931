"""Numbers of choices, and their positions as one-hot vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_specs.leaves.interval import limits


def checked_count(n: Any, dynamic: bool = False) -> int:
    """Check a number of choices."""
    try:
        count = int(n)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        count = None
    if count is None or count != n:
        msg = f"the number of choices must be an integer: got {n!r}"
        raise TypeError(msg)
    if count < 1 and not (dynamic and count == -1):
        msg = f"the number of choices must be positive{', or -1' if dynamic else ''}: got {n}"
        raise ValueError(msg)
    return count


def check_room(n: int, dtype: torch.dtype) -> None:
    """Check that a dtype can hold every choice."""
    largest = limits(dtype)[1]
    if dtype.is_floating_point:  # above it not every whole number is one
        largest = min(largest, int(2 / torch.finfo(dtype).eps))
    if n - 1 > largest:
        msg = f"{dtype} cannot hold {n} choices: its largest value is {largest}. Pass torch.int64."
        raise ValueError(msg)


def hot(index: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Write positions as one-hot vectors."""
    out = torch.zeros((*index.shape, n), dtype=dtype, device=index.device)
    try:
        # [*rows, n], a one at [*rows, index]
        return out.scatter_(-1, index.long().unsqueeze(-1), 1)
    except RuntimeError:
        msg = f"expected choices from 0 to {n - 1}: got {index}"
        raise ValueError(msg) from None


def pick(tensor: Tensor, index: Tensor) -> Tensor:
    """Read the last dimension of a tensor at one position for each row."""
    try:
        rows = torch.broadcast_shapes(tensor.shape[:-1], index.shape)
        # one position for each row: [*rows, 1], as gather wants it
        places = index.long().expand(rows).unsqueeze(-1)
        return tensor.expand(*rows, tensor.shape[-1]).gather(-1, places).squeeze(-1)
    except (RuntimeError, IndexError, AttributeError):
        found = [getattr(value, "shape", type(value).__name__) for value in (tensor, index)]
        msg = (
            f"expected entries [*rows, n] and positions 0 to n - 1 that the rows broadcast with: "
            f"got {found[0]} and {found[1]}"
        )
        raise ValueError(msg) from None


def one_hot_everywhere(val: Tensor) -> bool:
    """Tell whether every row holds a single one, and zeros."""
    if val.dtype == torch.bool:
        return bool((val.sum(-1) == 1).all())
    return bool(((val == 1).sum(-1) == 1).all() and ((val != 0).sum(-1) == 1).all())
