"""Means and other statistics over the steps that count."""

from __future__ import annotations

from math import prod
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


def spread(counted: Tensor | None, values: Tensor) -> Tensor | None:
    """Give a flag of steps the dimensions of values ``[*B, T, ...]``."""
    if counted is None:
        return None
    # what is one for all members, as the sum of their log-probabilities, counts if any of them does
    while counted.shape != values.shape[: counted.ndim]:
        counted = counted.any(-1)
    return counted.view(*counted.shape, *(1,) * (values.ndim - counted.ndim)).expand(values.shape)


def kept(values: Tensor, counted: Tensor | None) -> Tensor:
    """Put zeros where steps do not count, so that nothing they hold has an effect or a gradient."""
    where = spread(counted, values)
    return values if where is None else values.masked_fill(~where, 0)


def reduce(
    values: Tensor,
    counted: Tensor | None,
    reduction: Reduction = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Reduce values to their mean or sum over the steps that count."""
    if weight is not None:
        values, weight = _weighted(values, weight)
        weight = kept(weight, counted)
    shown = kept(values, counted)
    if reduction == "none":
        return shown
    if reduction == "sum":
        return shown.sum()
    if weight is not None:
        total = weight.sum()
        return shown.sum() / torch.where(total == 0, 1, total)  # the mean of no step is 0
    where = spread(counted, values)
    return shown.mean() if where is None else shown.sum() / where.sum().clamp(min=1)


def _weighted(values: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    flat = weight.squeeze(-1) if weight.ndim == values.ndim and weight.shape[-1] == 1 else weight
    if flat.shape != values.shape[: flat.ndim] or flat.ndim < values.ndim - 1:
        msg = f"expected one weight per step, {list(values.shape[:-1])}: got {list(weight.shape)}."
        raise ValueError(msg)
    wide = flat.view(*flat.shape, *(1,) * (values.ndim - flat.ndim)).expand(values.shape)
    return values * wide, wide


def standardise(
    values: Tensor, counted: Tensor | None, exclude: tuple[int, ...] = (), floor: float = 1e-6
) -> Tensor:
    """Shift and scale to mean 0 and standard deviation 1 over the steps that count."""
    if any(not -values.ndim <= dim < values.ndim for dim in exclude):
        msg = f"normalize_advantage_exclude_dims={exclude}: advantages are {list(values.shape)}."
        raise ValueError(msg)
    own = {dim % values.ndim for dim in exclude}
    dims = [dim for dim in range(values.ndim) if dim not in own]
    if counted is None and prod(values.shape[dim] for dim in dims) > 1:
        spread_of, mean = torch.std_mean(values, dims, keepdim=True)
        return (values - mean) / spread_of.clamp(min=floor)
    where = spread(counted, values)
    one = torch.ones_like(values) if where is None else where.to(values.dtype)
    number = one.sum(dims, keepdim=True)
    mean = kept(values, counted).sum(dims, keepdim=True) / number.clamp(min=1)
    square = kept((values - mean).square(), counted).sum(dims, keepdim=True)
    deviation = (square / (number - 1).clamp(min=1)).sqrt().clamp(min=floor)
    return kept((values - mean) / deviation, counted)


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


def explained_variance(value: Tensor, target: Tensor, counted: Tensor | None) -> Tensor:
    """Share of the variance of targets that values explain."""
    # 1 - Var(target - value) / Var(target).
    return 1 - variance(target - value, counted) / variance(target, counted)


def variance(values: Tensor, counted: Tensor | None) -> Tensor:
    """Mean square distance from the mean."""
    if counted is None:
        return values.var(correction=0)
    return reduce((kept(values, counted) - reduce(values, counted)).square(), counted)
