"""Arithmetic on closed intervals: membership, nearest points, and samples that never overflow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

INT64_MIN = torch.iinfo(torch.int64).min
INT64_MAX = torch.iinfo(torch.int64).max


def limits(dtype: torch.dtype) -> tuple[float, float]:
    """Give the smallest and the largest finite value of a dtype."""
    if dtype == torch.bool:
        return 0, 1
    if dtype.is_floating_point or dtype.is_complex:
        return torch.finfo(dtype).min, torch.finfo(dtype).max
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def within(value: Tensor, low: float, high: float) -> bool:
    """Tell whether every element is in one interval. NaN is in none."""
    if not value.numel():
        return True
    smallest, largest = torch.aminmax(value)
    return bool(low <= smallest.item() and largest.item() <= high)


def whole(value: Tensor) -> bool:
    """Tell whether every element is a whole number."""
    return not value.is_floating_point() or bool((value == value.round()).all())


def clip(value: Tensor, low: Tensor, high: Tensor, dtype: torch.dtype) -> Tensor:
    """Find the nearest points of an interval, in another dtype."""
    # Values are compared before they are cast, so a value that the dtype cannot hold becomes a
    # bound instead of wrapping round. NaN becomes the point nearest to 0.
    low, high = low.to(value.device), high.to(value.device)
    if value.is_floating_point():
        value = value.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
    rounded = value.round() if value.is_floating_point() and not dtype.is_floating_point else value
    return torch.where(value >= high, high, torch.where(value <= low, low, rounded.to(dtype)))


def random_floats(low: Tensor, high: Tensor, shape: torch.Size) -> Tensor:
    """Draw finite numbers from intervals that may be infinite."""
    # Uniform between two finite bounds, exponential away from a single one, normal without any.
    uniform = torch.rand(shape, dtype=low.dtype, device=low.device)
    # never high - low, which may overflow
    out = low * (1 - uniform) + high * uniform
    open_low, open_high = low.isinf(), high.isinf()
    if open_low.any() or open_high.any():
        tail = torch.empty_like(uniform).exponential_()
        out = torch.where(open_high, low + tail, torch.where(open_low, high - tail, out))
        out = torch.where(open_low & open_high, torch.randn_like(uniform), out)
    smallest, largest = limits(low.dtype)
    return torch.maximum(torch.minimum(out, high), low).clamp(smallest, largest)


def random_integers(low: Tensor, high: Tensor, shape: torch.Size) -> Tensor:
    """Draw whole numbers from closed intervals, each of any width up to all of int64."""
    bits = torch.empty(shape, dtype=torch.int64, device=low.device).random_(INT64_MIN, None)
    count = high - low + 1
    narrow = low + (bits & INT64_MAX) % count.clamp(min=1)
    # a count that overflowed is at least half of all numbers: one flip of the top bit lands inside
    flipped = torch.where((bits < low) | (bits > high), bits ^ INT64_MIN, bits)
    return torch.where(count > 0, narrow, flipped)
