"""Which steps count, and means over them alone."""

from __future__ import annotations

from typing import Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_tensordict import NestedKey, as_tuple, find, require
from rl_value.counted_steps import (
    absent_members,
    member_flag,
    members_without_next,
    step_flag,
    under_next,
)

Reduction = Literal["mean", "sum", "none"]


def counted_steps(
    batch: TensorDictBase,
    mask_key: NestedKey | None = "auto",
    terminated: NestedKey = keys.TERMINATED,
    done: NestedKey = keys.DONE,
) -> Tensor | None:
    """Find the steps that losses are about, bool ``[*B, T]``; ``[*B, T, *G]`` of a group."""
    # "auto" is all of: real by the mask, inside the budget of shifted, with its history, and with
    # a next observation unless terminated; another key is that flag alone; None counts every step
    if mask_key is None:
        return None
    if mask_key != "auto":
        flag = require(batch, mask_key)
        of_members = member_flag(batch, terminated, flag)
        return step_flag(batch, mask_key, flag) if of_members is None else of_members
    found: Tensor | None = None
    for key in (keys.MASK, keys.SHIFTED_VALID):
        value = find(batch, as_tuple(key))
        if value is not None:
            flag = step_flag(batch, key, value)
            found = flag if found is None else found & flag
    lost_members = _members_left_out(batch, terminated, done)
    for lost in (_without_history(batch), _without_next(batch, terminated), lost_members):
        if lost is None:
            continue
        # steps [*B, T] and members [*B, T, *G] meet
        extra = 0 if found is None else lost.ndim - found.ndim
        wide = lost.view(*lost.shape, *(1,) * -extra)
        found = ~lost if found is None else found.view(*found.shape, *(1,) * extra) & ~wide
    return found


def _without_history(batch: TensorDictBase) -> Tensor | None:
    """Steps whose observation, or next one, is not the one that the policy saw."""
    flag = find(batch, keys.HISTORY_MISSING)
    return None if flag is None else step_flag(batch, keys.HISTORY_MISSING, flag)


def _without_next(batch: TensorDictBase, terminated: NestedKey) -> Tensor | None:
    """Steps that need a next observation and have none, bool ``[*B, T]`` or ``[*B, T, *G]``."""
    flag = find(batch, keys.NEXT_MISSING)
    if flag is None:
        return None
    lost, ended = step_flag(batch, keys.NEXT_MISSING, flag), find(batch, under_next(terminated))
    own = member_flag(batch, terminated, ended)
    if own is None:  # no flag, or several in a step, all of which must be set
        return lost if ended is None else lost & ~ended.flatten(batch.ndim).all(-1)
    return lost.view(*lost.shape, *(1,) * (own.ndim - lost.ndim)) & ~own


def _members_left_out(
    batch: TensorDictBase, terminated: NestedKey, done: NestedKey
) -> Tensor | None:
    """Members that are out, or need a next observation and have none, bool ``[*B, T, *G]``."""
    out, lost = absent_members(batch, terminated, done), members_without_next(batch, terminated)
    if lost is None:
        return out
    ended = member_flag(batch, terminated, find(batch, under_next(terminated)))
    lost = lost if ended is None else lost & ~ended
    return lost if out is None else out | lost


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
    where = spread(counted, values)
    one = torch.ones_like(values) if where is None else where.to(values.dtype)
    number = one.sum(dims, keepdim=True)
    mean = kept(values, counted).sum(dims, keepdim=True) / number.clamp(min=1)
    square = kept((values - mean).square(), counted).sum(dims, keepdim=True)
    deviation = (square / (number - 1).clamp(min=1)).sqrt().clamp(min=floor)
    return kept((values - mean) / deviation, counted)
