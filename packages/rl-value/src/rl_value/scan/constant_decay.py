"""The recurrence with one factor for all steps: each piece of the CPU's memory read once."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rl_layout.internals import array_of
from rl_value.arguments import is_transformed, time_of
from rl_value.scan.block_scan import PieceScan
from rl_value.scan.doubling_scan import doubling_scan
from rl_value.scan.powers import Flags, Floats

Fill = Callable[[slice, Flags, Floats], None]
Finish = Callable[[slice, Floats], object]


def is_plain(factors: tuple[float | Tensor, ...], *values: Tensor) -> bool:
    """Tell whether steps can be scanned in the memory of the CPU, without a graph."""
    if is_transformed() or any(isinstance(factor, Tensor) for factor in factors):
        return False
    # one dtype in the memory of the CPU, and no gradient to keep
    wanted, dtype = torch.is_grad_enabled(), values[0].dtype
    for value in values:
        if not value.is_cpu or value.dtype != dtype or (wanted and value.requires_grad):
            return False
    return True


def rows_of(dim: int, *values: Tensor) -> list[Floats]:
    """Lay arrays out flat, time running fastest."""
    return [
        _flat(array_of(value.detach() if value.requires_grad else value), dim) for value in values
    ]


def _flat(rows: Floats, dim: int) -> Floats:
    if _is_one_column(rows.shape, dim):
        return rows.reshape(-1)
    return np.moveaxis(rows, dim, -1).reshape(-1)


def _is_one_column(shape: tuple[int, ...], dim: int) -> bool:
    """Whether time runs fastest already."""
    return shape[dim] == math.prod(shape[dim:])


def empty_rows(like: Tensor, dim: int) -> tuple[Tensor, Floats]:
    """Make an array that is in memory as `rows_of` lays others out."""
    shape = like.shape
    dtype = np.float32 if like.dtype == torch.float32 else np.float64
    if _is_one_column(shape, dim):
        made = np.empty(shape, dtype)
        return torch.from_numpy(made), made.reshape(-1)
    made = np.empty((*shape[:dim], *shape[dim + 1 :], shape[dim]), dtype)
    return torch.from_numpy(made).movedim(-1, dim), made.reshape(-1)


def cuts_of(ends: tuple[Tensor, ...], shape: torch.Size, dim: int) -> Flags:
    """Lay the rows that are cut out flat: those of some flags, and the last of each column."""
    flags = rows_of(dim, *(f if f.shape == shape else f.expand(shape) for f in ends))
    cut: Flags = flags[0].copy() if len(flags) == 1 else np.logical_or(*flags)
    cut.reshape(-1, shape[dim])[:, -1] = True
    return cut


def discounted_scan(
    factor: float,
    ends: tuple[Tensor, ...],
    like: Tensor,
    fill: Fill,
    time_dim: int,
    finish: Finish | None = None,
) -> Tensor:
    """Compute yₜ = bₜ + factor yₜ₊₁, and yₜ = bₜ where the step is cut and at the last t."""
    dim, shape = time_of(like, time_dim), like.shape
    if not like.numel():
        return torch.empty_like(like)
    # fill writes b of some flat rows; finish reads their y while it is in the cache
    out, rows = empty_rows(like, dim)
    cut = cuts_of(ends, shape, dim)
    if not _scan_pieces(factor, cut, rows, fill, finish):
        _scan_around(factor, cut, rows, fill)
        if finish is not None:
            finish(slice(0, len(rows)), rows)
    return out


def _scan_pieces(
    factor: float, cut: Flags, rows: Floats, fill: Fill, finish: Finish | None = None
) -> bool:
    """Write y to flat rows, and tell whether it was made of finite b alone."""
    scan = PieceScan(rows, factor)
    memory = np.empty(max(here.stop - here.start for here in scan.pieces), rows.dtype)
    with np.errstate(all="ignore"):
        for here in scan.pieces:
            term = memory[: here.stop - here.start]
            fill(here, cut[here], term)
            scan.take(cut[here], term, rows[here])
            if finish is not None:
                finish(here, rows[here])
    return scan.is_finite


def _scan_around(factor: float, cut: Flags, rows: Floats, fill: Fill) -> None:
    """Write y of which some is not finite: the rest is scanned with zeros in its place."""
    terms = np.empty_like(rows)
    with np.errstate(all="ignore"):
        fill(slice(0, len(rows)), cut, terms)
    weight = np.where(cut, 0, factor).astype(rows.dtype)
    exact = doubling_scan(torch.from_numpy(weight), torch.from_numpy(terms)).numpy()
    lost = ~np.isfinite(exact)  # rows before a value that is not finite, up to the next cut
    terms[lost] = 0
    _scan_pieces(factor, cut, rows, lambda here, _, term: np.copyto(term, terms[here]))
    np.copyto(rows, exact, where=lost)
