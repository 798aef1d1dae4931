"""What a loss reports alongside itself, over the steps that count."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_value.masked_means import kept, reduce, spread


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
