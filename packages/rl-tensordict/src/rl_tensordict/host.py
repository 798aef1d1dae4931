"""What a program keeps for itself is on the CPU, whatever torch's default device is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")
"""Where numbers of rows, ids, flags and random numbers of a host's generator are made."""


def as_tensor(value: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Convert to a tensor: one that is a tensor stays on its device, anything else is on the CPU.

    ``torch.as_tensor`` moves both to torch's default device, where one is set.

    Args:
        value: a tensor, an array, a number, or nested lists of numbers.
        dtype: the dtype of the result; that of the value unless given.

    Raises:
        TypeError, ValueError, RuntimeError: of torch, for what is no tensor.

    Example:
        >>> with torch.device("meta"):
        ...     as_tensor([3, 5])
        tensor([3, 5])
    """
    if isinstance(value, Tensor):
        return value if dtype is None else value.to(dtype)
    return torch.as_tensor(value, dtype=dtype, device=CPU)
