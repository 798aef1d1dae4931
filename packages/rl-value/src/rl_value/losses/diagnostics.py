"""What a loss reports alongside itself, over the steps that count."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_value.losses.arrays import Array
from rl_value.losses.masked_means import kept, reduce, spread

TINY = 1e-30  # below it a square in single precision has lost digits


def effective_sample_size(log_weight: Tensor, counted: Tensor | None) -> Tensor:
    """Share of the steps that as many equal weights would represent."""
    # (Σ w)² / (n Σ w²), between 1 / n and 1.
    where = spread(counted, log_weight)
    shown = log_weight if where is None else log_weight.masked_fill(~where, -torch.inf)
    flat = shown.reshape(-1)
    number = flat.numel() if where is None else where.sum().clamp(min=1)
    weight = (flat - flat.max()).exp()  # the largest is 1: neither sum leaves the range
    share = weight.sum().square() / (weight.dot(weight) * number)
    return share.nan_to_num(0.0)  # no step at all


def ratio_statistics(ratio: Tensor, counted: Tensor | None) -> dict[str, Tensor]:
    """The largest and the mean weight."""
    largest = kept(ratio, counted).amax()  # weights are positive
    return {"max_ratio": largest, "mean_ratio": reduce(ratio, counted)}


def effective_share(weight: Array, log_weight: Array) -> float:
    """`effective_sample_size` of an array in memory, of steps that all count."""
    total, square = _sums(weight)
    if not TINY < square < np.inf:
        total, square = _sums(np.exp(log_weight - log_weight.max()))
    return total * total / (square * weight.size)


def explained_variance(value: Tensor, target: Tensor, counted: Tensor | None) -> Tensor:
    """Share of the variance of targets that values explain."""
    # 1 - Var(target - value) / Var(target).
    return 1 - variance(target - value, counted) / variance(target, counted)


def explained_share(apart: Array, target: Array) -> float:
    """`explained_variance` of arrays in memory, of steps that all count."""
    return float(1 - _variance(apart) / _variance(target))


def variance(values: Tensor, counted: Tensor | None) -> Tensor:
    """Mean square distance from the mean."""
    if counted is None:
        return values.var(correction=0)
    return reduce((kept(values, counted) - reduce(values, counted)).square(), counted)


def _sums(weight: Array) -> tuple[float, float]:
    """Σ w and Σ w²; a product of BLAS would wake threads of its own on a large batch."""
    return float(np.add.reduce(weight)), float(np.add.reduce(weight * weight))


def _variance(values: Array) -> np.float64:
    apart = values - np.add.reduce(values) / values.size
    apart *= apart
    return np.float64(np.add.reduce(apart) / values.size)
