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


def draw_seed(below: int = 2**62, generator: torch.Generator | None = None) -> int:
    """Draw a seed for another generator, on the CPU.

    Args:
        below: seeds are 0 or more, and below it.
        generator: where it is drawn from; torch's global generator where None.

    Example:
        >>> one, same = (draw_seed(9, torch.Generator().manual_seed(3)) for _ in range(2))
        >>> one == same < 9
        True
    """
    return int(torch.randint(below, (), generator=generator, device=CPU))
