"""The recurrence with one factor for all steps: each piece of the CPU's memory read once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rl_layout.views import array_of
from rl_value.returns.blocked import PIECE, Flags, Floats, PieceScan
from rl_value.returns.doubling import doubling_scan
from rl_value.returns.steps import time_of

Fill = Callable[[slice, Flags, Floats], None]


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
    return [array_of(_flat(value, dim)) for value in values]


def _flat(value: Tensor, dim: int) -> Tensor:
    known = value.detach() if value.requires_grad else value
    if dim == 0 and known.numel() == len(known) and known.is_contiguous():
        return known.view(-1)  # flat steps of one column lie so already
    return known.movedim(dim, -1).reshape(-1)


def discounted_scan(
    factor: float,
    ends: tuple[Tensor, ...],
    like: Tensor,
    fill: Fill,
    time_dim: int,
) -> Tensor:
    """Compute yₜ = bₜ + factor yₜ₊₁, and yₜ = bₜ where the step is cut and at the last t.

    Args:
        factor: in [0, 1].
        ends: flags of the steps that are cut, bool ``[*B, T, C]`` or 1 last, at least one.
        like: array of the shape and dtype of y.
        fill: called with the place of some flat rows, with their cuts, and with memory that it
            writes b to.
        time_dim: dimension of time.

    Returns:
        y. What is not finite stays in front of its cut, and changes no bit of the rest.

    Example:
        >>> like, no = torch.zeros(3), torch.zeros(3, dtype=torch.bool)
        >>> discounted_scan(0.5, (no,), like, lambda here, cut, b: b.fill(1), 0).tolist()
        [1.75, 1.5, 1.0]
    """
    dim, shape = time_of(like, time_dim), like.shape
    if not like.numel():
        return torch.empty_like(like)
    out = torch.empty(like.movedim(dim, -1).shape, dtype=like.dtype)
    rows = out.view(-1).numpy()
    flags = rows_of(dim, *(f if f.shape == shape else f.expand(shape) for f in ends))
    cut: Flags = flags[0].copy()
    for flag in flags[1:]:
        cut |= flag
    cut.reshape(-1, like.shape[dim])[:, -1] = True
    if not _scan_pieces(factor, cut, rows, fill):
        _scan_around(factor, cut, rows, fill)
    return out.movedim(-1, dim)


def _scan_pieces(factor: float, cut: Flags, rows: Floats, fill: Fill) -> bool:
    """Write y to flat rows, and tell whether all of it is finite."""
    scan, memory = PieceScan(rows, factor), np.empty(min(PIECE, len(rows)), rows.dtype)
    total = 0.0
    with np.errstate(all="ignore"):
        for here in scan.pieces:
            term = memory[: here.stop - here.start]
            fill(here, cut[here], term)
            scan.take(cut[here], term, rows[here])
            total += float(np.add.reduce(rows[here]))
    return bool(np.isfinite(total))


def _scan_around(factor: float, cut: Flags, rows: Floats, fill: Fill) -> None:
    """Write y of which some is not finite: the rest is scanned with zeros in its place."""
    terms = np.empty_like(rows)
    with np.errstate(all="ignore"):
        fill(slice(0, len(rows)), cut, terms)
    weight = np.where(cut, 0, factor).astype(rows.dtype)
    exact = doubling_scan(torch.from_numpy(weight), torch.from_numpy(terms)).numpy()
    lost = ~np.isfinite(exact)
    terms[lost] = 0
    _scan_pieces(factor, cut, rows, lambda here, _, term: np.copyto(term, terms[here]))
    np.copyto(rows, exact, where=lost)
