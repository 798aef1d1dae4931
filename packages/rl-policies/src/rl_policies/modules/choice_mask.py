"""Masks that say which choices are allowed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def require_mask(mask: Any) -> None:
    """Raise unless a mask is a tensor."""
    if not isinstance(mask, Tensor):
        msg = f"the mask must be a bool tensor: got {type(mask).__name__}"
        raise TypeError(msg)


def check_mask(mask: Any, shape: tuple[int, ...], *, wider: bool = False) -> None:
    """Raise unless a mask is bool and fits scores `[*B, n]`; `wider` lets it have more rows."""
    require_mask(mask)
    if mask.dtype != torch.bool:
        msg = f"the mask must be bool, True where a choice is allowed: got {mask.dtype}"
        raise TypeError(msg)
    size = mask.shape
    if size == shape:
        return
    # from the last dimension on, as torch aligns them
    pairs = list(zip(reversed(size), reversed(shape), strict=False))
    fits = all(own == other or own == 1 or (wider and other == 1) for own, other in pairs)
    # one column would allow all choices of a row or none
    if size[-1:] != shape[-1:] or not fits or (len(size) > len(shape) and not wider):
        msg = (
            f"the mask must have an entry for each choice and broadcast to {tuple(shape)}, the "
            f"shape of the scores: got {tuple(size)}"
        )
        raise ValueError(msg)
