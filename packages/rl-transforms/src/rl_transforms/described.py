"""Specs of leaves whose values a transform changes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl_specs import Bounded, TensorSpec, Unbounded


def described(spec: TensorSpec, change: Callable[[Tensor], Tensor]) -> TensorSpec:
    """Describe a leaf after a monotonic change: its bounds change like its values."""
    if -1 in spec.shape:
        msg = f"the sizes of a leaf must be known to be changed: its spec has {list(spec.shape)}."
        raise ValueError(msg)
    if isinstance(spec, Bounded):
        ends = change(spec.low), change(spec.high)
        # a decreasing change swaps the bounds
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        return Bounded(low, high, dtype=low.dtype, device=spec.device)
    return without_bounds(spec, change)


def limited(spec: TensorSpec, change: Callable[[Tensor], Tensor]) -> TensorSpec:
    """Describe a leaf after a change with limits of its own, such as clipping."""
    if not isinstance(spec, Unbounded) or spec.dtype == torch.bool:
        return described(spec, change)
    # the bounds are the changes of the least and the largest value of the dtype
    zero = spec.zero()
    whole = None if zero.is_floating_point() else torch.iinfo(zero.dtype)
    least, most = (-torch.inf, torch.inf) if whole is None else (whole.min, whole.max)
    low, high = change(torch.full_like(zero, least)), change(torch.full_like(zero, most))
    return Bounded(low, high, dtype=low.dtype, device=spec.device)


def without_bounds(spec: TensorSpec, change: Callable[[Tensor], Tensor]) -> TensorSpec:
    """Describe a leaf after an arbitrary change: unbounded, of the changed shape and dtype."""
    made = change(spec.zero())
    return Unbounded(made.shape, dtype=made.dtype, device=spec.device)
