"""How far the trajectories of rows continue, and the rows at some distance of each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Find = Callable[[Tensor, int], tuple[Tensor, Tensor]]


def furthest(rows: Tensor, find: Find) -> tuple[Tensor, Tensor]:
    """Go along trajectories as far as the markers prove it."""
    # In steps that double until none can be taken, then halve: as many calls as the longest way has
    # binary digits, twice.
    stride = 1
    while bool(find(rows, stride)[1].any()):
        stride *= 2
    far = torch.zeros_like(rows)
    while stride := stride // 2:
        found, proved = find(rows, stride)
        rows = torch.where(proved, found, rows)
        far = far + stride * proved
    return rows, far


def at_distances(rows: Tensor, far: Tensor, find: Find) -> Tensor:
    """Go along trajectories by a distance of its own for each row."""
    stride = 1
    while bool((far >= stride).any()):
        is_set = (far & stride) > 0
        rows = torch.where(is_set, find(rows, stride)[0], rows)
        stride *= 2
    return rows
