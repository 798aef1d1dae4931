"""The recurrence with one factor for all steps: each piece of the CPU's memory read once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rl_layout.views import array_of
from rl_value.returns.blocked import PIECE, Flags, Floats, PieceScan
from rl_value.returns.steps import time_of


def is_plain(factors: tuple[float | Tensor, ...], *values: Tensor) -> bool:
    """Tell whether steps can be scanned in the memory of the CPU, without a graph.

    Args:
        factors: discounts and the like.
        values: float arrays.

    Returns:
        True where the factors are numbers, and the arrays of one dtype on the CPU without a
        gradient to keep.

    Example:
        >>> is_plain((0.9,), torch.zeros(3)), is_plain((torch.ones(3),), torch.zeros(3))
        (True, False)
    """
    if torch.compiler.is_compiling() or any(isinstance(factor, Tensor) for factor in factors):
        return False
    wanted = torch.is_grad_enabled()
    return all(
        value.device.type == "cpu"
        and value.dtype == values[0].dtype
        and not (wanted and value.requires_grad)
        for value in values
    )


def rows_of(dim: int, *values: Tensor) -> list[Floats]:
    """Lay arrays out flat, time running fastest.

    Args:
        dim: dimension of time.
        values: arrays of one shape ``[*B, T, C]`` on the CPU.

    Returns:
        ``[N]`` each, in the memory of the array where it lies so.

    Example:
        >>> rows_of(0, torch.tensor([[1, 2], [3, 4]]))[0].tolist()
        [1, 3, 2, 4]
    """
    return [array_of(value.detach().movedim(dim, -1).reshape(-1)) for value in values]


def discounted_scan(
    factor: float,
    ends: tuple[Tensor, ...],
    like: Tensor,
    fill: Callable[[slice, Flags, Floats], None],
    time_dim: int,
) -> Tensor | None:
    """Compute yₜ = bₜ + factor yₜ₊₁, and yₜ = bₜ where the step is cut and at the last t.

    Args:
        factor: in [0, 1].
        ends: flags of the steps that are cut, bool ``[*B, T, C]`` or 1 last, at least one.
        like: array of the shape and dtype of y.
        fill: called with the place of some flat rows, with their cuts, and with memory that it
            writes b to.
        time_dim: dimension of time.

    Returns:
        y; None where it is not finite, so that what is may have to be kept apart.

    Example:
        >>> like, no = torch.zeros(3), torch.zeros(3, dtype=torch.bool)
        >>> discounted_scan(0.5, (no,), like, lambda here, cut, b: b.fill(1), 0).tolist()
        [1.75, 1.5, 1.0]
    """
    dim = time_of(like, time_dim)
    if not like.numel():
        return torch.empty_like(like)
    out = torch.empty(like.movedim(dim, -1).shape, dtype=like.dtype)
    rows, flags = out.view(-1).numpy(), rows_of(dim, *(flag.expand(like.shape) for flag in ends))
    cut: Flags = flags[0].copy()
    for flag in flags[1:]:
        cut |= flag
    cut.reshape(-1, like.shape[dim])[:, -1] = True
    scan, memory = PieceScan(rows, factor), np.empty(min(PIECE, len(rows)), rows.dtype)
    total = 0.0
    with np.errstate(all="ignore"):
        for here in scan.pieces:
            term = memory[: here.stop - here.start]
            fill(here, cut[here], term)
            scan.take(cut[here], term, rows[here])
            total += float(np.add.reduce(rows[here]))
    return out.movedim(-1, dim) if np.isfinite(total) else None
