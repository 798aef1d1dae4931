"""Ranges and histograms of a leaf."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_record.look.bins import Bins
from rl_record.look.shown_rows import LeafType, ShownRows, spread_rows

PIECE = 1 << 18  # values
RANGE_BYTES, BINNED_ROWS, BINNED_VALUES = 64 << 20, 100_000, 1_000_000
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class LeafSummary:
    """What the values of one leaf are."""

    leaf: LeafType  # its key, dtype and shape
    num_rows: int = 0  # rows that were read, evenly spaced where not all were
    low: float | None = None  # the least value that is no NaN; None without any
    high: float | None = None  # the greatest one
    mean: float = float("nan")  # of the finite values; NaN without any
    std: float = float("nan")  # their standard deviation
    num_nan: int = 0  # values that are NaN
    num_infinite: int = 0  # values that are infinite
    bins: Bins | None = None  # of the finite values of `num_binned` rows
    num_binned: int = 0  # rows that were counted


def summarise(rows: ShownRows, leaf: LeafType) -> LeafSummary:
    """Summarise a leaf of rows."""
    if leaf.dtype is None:
        return LeafSummary(leaf)
    if leaf.dtype.is_complex:
        return LeafSummary(leaf._replace(note="complex numbers: not shown"))
    total = rows.batch.batch_size.numel()
    some = spread_rows(total, max(1, RANGE_BYTES // max(1, leaf.row_bytes)))
    values = rows.read(leaf.key, None if len(some) == total else some)
    if not values.numel():
        return LeafSummary(leaf._replace(note="no value in a row"), len(values))
    if leaf.dtype not in WHOLE and leaf.dtype not in (torch.float32, torch.float64):
        values = values.float() if leaf.dtype.is_floating_point else values.long()
    array = values.numpy()
    nan = infinite = 0
    if values.is_floating_point():
        nan, infinite = np.isnan(array).sum(), np.isinf(array).sum()
    finite = array[np.isfinite(array)] if nan or infinite else array.reshape(-1)
    numbers = array[~np.isnan(array)] if nan else array
    per_row = max(1, array[0].size)
    binned = spread_rows(len(array), min(BINNED_ROWS, max(1, BINNED_VALUES // per_row)))
    mean, std = _moments(finite.reshape(-1))
    return LeafSummary(
        leaf,
        len(array),
        numbers.min().item() if numbers.size else None,
        numbers.max().item() if numbers.size else None,
        mean,
        std,
        int(nan),
        int(infinite),
        Bins.of(array if len(binned) == len(array) else array[binned.numpy()]),
        len(binned),
    )


def _moments(values: NDArray[Any]) -> tuple[float, float]:
    """Mean and standard deviation; NaN of none."""
    if not values.size:
        return float("nan"), float("nan")
    with np.errstate(over="ignore", invalid="ignore"):  # squares of huge values
        mean = values.mean(dtype=np.float64)
        # piece by piece: of bytes float64 takes eight times the memory
        pieces = (values[i : i + PIECE].astype(np.float64) for i in range(0, values.size, PIECE))
        squares = sum(float(np.square(piece - mean).sum()) for piece in pieces)
    return float(mean), math.sqrt(squares / values.size)
