"""Arithmetic on closed intervals: membership, nearest points, and samples that never overflow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

INT64_MIN = torch.iinfo(torch.int64).min
INT64_MAX = torch.iinfo(torch.int64).max


def limits(dtype: torch.dtype) -> tuple[float, float]:
    """Give the smallest and the largest finite value of a dtype.

    Args:
        dtype: any real dtype.

    Returns:
        Both, integers for integer dtypes.

    Example:
        >>> limits(torch.int8)
        (-128, 127)
    """
    if dtype == torch.bool:
        return 0, 1
    if dtype.is_floating_point or dtype.is_complex:
        return torch.finfo(dtype).min, torch.finfo(dtype).max
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def within(value: Tensor, low: float, high: float) -> bool:
    """Tell whether every element lies in one interval. NaN lies in none.

    Args:
        value: any shape, any real dtype.
        low: the smallest allowed value.
        high: the largest.

    Returns:
        True where all do, or where there is no element.

    Example:
        >>> within(torch.tensor([0.0, 2.0]), 0.0, 1.0)
        False
    """
    if not value.numel():
        return True
    smallest, largest = torch.aminmax(value)
    return bool(low <= smallest.item() and largest.item() <= high)


def whole(value: Tensor) -> bool:
    """Tell whether every element is a whole number.

    Args:
        value: any shape, any real dtype.

    Returns:
        True for integer dtypes without looking.

    Example:
        >>> whole(torch.tensor([1.0, 1.5]))
        False
    """
    return not value.is_floating_point() or bool((value == value.round()).all())


def clip(value: Tensor, low: Tensor, high: Tensor, dtype: torch.dtype) -> Tensor:
    """Find the nearest points of an interval, in another dtype.

    Values are compared before they are cast, so a value that the dtype cannot hold becomes a
    bound instead of wrapping round. NaN becomes the point nearest to 0.

    Args:
        value: any real dtype, a shape that `low` broadcasts to.
        low: smallest values, of dtype `dtype`.
        high: largest values, likewise.
        dtype: the dtype of the result; to integers, floats are rounded.

    Returns:
        A new tensor of the shape of `value`.

    Example:
        >>> clip(torch.tensor([-1.0, 1e9]), torch.tensor(0), torch.tensor(255), torch.int64)
        tensor([  0, 255])
    """
    low, high = low.to(value.device), high.to(value.device)
    if value.is_floating_point():
        value = value.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
    rounded = value.round() if value.is_floating_point() and not dtype.is_floating_point else value
    return torch.where(value >= high, high, torch.where(value <= low, low, rounded.to(dtype)))


def random_floats(low: Tensor, high: Tensor, shape: torch.Size) -> Tensor:
    """Draw finite numbers from intervals that may be infinite.

    Uniform between two finite bounds, exponential away from a single one, normal without any.

    Args:
        low: smallest values, a shape that broadcasts to `shape`.
        high: largest values, likewise.
        shape: shape of the result.

    Returns:
        A new tensor of the dtype and device of `low`.

    Example:
        >>> random_floats(torch.tensor(0.0), torch.tensor(math.inf), torch.Size((2,))).min() >= 0
        tensor(True)
    """
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
    """Draw whole numbers from closed intervals, each of any width up to all of int64.

    Args:
        low: smallest values, int64, a shape that broadcasts to `shape`.
        high: largest values, likewise.
        shape: shape of the result.

    Returns:
        A new int64 tensor.

    Example:
        >>> random_integers(torch.tensor(3), torch.tensor(3), torch.Size((2,)))
        tensor([3, 3])
    """
    bits = torch.empty(shape, dtype=torch.int64, device=low.device).random_(INT64_MIN, None)
    count = high - low + 1
    narrow = low + (bits & INT64_MAX) % count.clamp(min=1)
    # a count that overflowed is at least half of all numbers: one flip of the top bit lands inside
    flipped = torch.where((bits < low) | (bits > high), bits ^ INT64_MIN, bits)
    return torch.where(count > 0, narrow, flipped)
