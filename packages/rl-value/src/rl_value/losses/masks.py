"""Which steps count, and means over them alone."""

from __future__ import annotations

from typing import Literal

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import keys
from rl_layout.keys import NestedKey, as_tuple, require
from rl_layout.markers import flat_marker
from rl_layout.tensordict_fast import find
from rl_value.estimators.steps import under_next

Reduction = Literal["mean", "sum", "none"]


def counted_steps(
    batch: TensorDictBase, mask_key: NestedKey | None = "auto", terminated: NestedKey = "terminated"
) -> Tensor | None:
    """Find the steps of a batch that losses and statistics are about.

    Args:
        batch: a TED tensordict ``[*B, T]``.
        mask_key: ``"auto"`` for all of: real by ``("collector", "mask")``, ``"shifted_valid"``,
            and not ``next_missing`` unless terminated; another key for that flag alone; None
            for every step.
        terminated: key of the flag, named as at the root.

    Returns:
        bool ``[*B, T]``; None where every step counts.

    Raises:
        KeyError: the flag that was named is missing.
        TypeError: a flag is not boolean.
        ValueError: a flag has another shape than the batch.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> batch = trajectories([3])
        >>> batch["collector", "mask"] = torch.tensor([True, True, False])
        >>> counted_steps(batch)
        tensor([ True,  True, False])
    """
    if mask_key is None:
        return None
    if mask_key != "auto":
        return _flag(batch, mask_key, require(batch, mask_key))
    found: Tensor | None = None
    for key in (keys.MASK, keys.SHIFTED_VALID):
        value = find(batch, as_tuple(key))
        if value is not None:
            flag = _flag(batch, key, value)
            found = flag if found is None else found & flag
    missing = find(batch, keys.NEXT_MISSING)
    if missing is None:
        return found
    has_next = ~_flag(batch, keys.NEXT_MISSING, missing)
    ended = find(batch, under_next(terminated))
    if ended is not None:
        has_next = has_next | ended.flatten(batch.ndim).all(-1)
    return has_next if found is None else found & has_next


def readable(batch: TensorDictBase, *networks: TensorDictModuleBase | None) -> TensorDictBase:
    """The batch as networks may read it: what floats is 0 on padding, which may hold anything.

    Left as it is, a NaN there would be no part of any loss and yet of the gradients, as 0 · NaN.

    Args:
        batch: a TED tensordict ``[*B, T]``; it is not changed.
        networks: whose inputs count.

    Returns:
        The batch itself where it has no mask.

    Raises:
        TypeError: the mask is not boolean.
        ValueError: the mask has another shape than the batch.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> batch = trajectories([2])
        >>> batch["collector", "mask"] = torch.tensor([True, False])
        >>> net = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])
        >>> readable(batch, net)["observation"].tolist()
        [[7.0, 0.0], [0.0, 0.0]]
    """
    mask = find(batch, keys.MASK)
    if mask is None:
        return batch
    real, seen = _flag(batch, keys.MASK, mask), batch.copy()
    read = [key for network in networks if network is not None for key in network.in_keys]
    for key in dict.fromkeys(map(as_tuple, read)):
        leaf = find(batch, key)
        if leaf is not None and leaf.is_floating_point():
            alike = real.view(*real.shape, *(1,) * (leaf.ndim - real.ndim))
            seen.set(key, torch.where(alike, leaf, 0))
    return seen


def _flag(batch: TensorDictBase, key: NestedKey, value: Tensor) -> Tensor:
    shape = batch.batch_size
    singleton = value.shape == (*shape, 1)
    return flat_marker(value, shape, key, torch.bool, singleton).view(shape)


def spread(counted: Tensor | None, values: Tensor) -> Tensor | None:
    """Give a flag of steps the dimensions of values ``[*B, T, ...]``."""
    if counted is None:
        return None
    return counted.view(*counted.shape, *(1,) * (values.ndim - counted.ndim)).expand(values.shape)


def kept(values: Tensor, counted: Tensor | None) -> Tensor:
    """Put zeros where steps do not count, so that nothing they hold has an effect or a gradient.

    Args:
        values: ``[*B, T, ...]``.
        counted: bool ``[*B, T]``, or None.

    Returns:
        ``[*B, T, ...]``.

    Example:
        >>> kept(torch.tensor([1.0, float("nan")]), torch.tensor([True, False]))
        tensor([1., 0.])
    """
    where = spread(counted, values)
    return values if where is None else values.masked_fill(~where, 0)


def reduce(
    values: Tensor,
    counted: Tensor | None,
    reduction: Reduction = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Reduce values to their mean or sum over the steps that count.

    Args:
        values: ``[*B, T, ...]``.
        counted: bool ``[*B, T]``; None where every step counts.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, which puts zeros where steps do not count.
        weight: ``[*B, T]``; the mean is Σ w x / Σ w.

    Returns:
        ``[]``, or ``[*B, T, ...]``; the mean of no step is 0.

    Raises:
        ValueError: the weights have another shape than the steps.

    Example:
        >>> reduce(torch.tensor([[1.0], [5.0]]), torch.tensor([True, False]))
        tensor(1.)
    """
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
        return shown.sum() / torch.where(total == 0, 1, total)
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
    """Shift and scale to mean 0 and standard deviation 1 over the steps that count.

    Args:
        values: ``[*B, T, ...]``.
        counted: bool ``[*B, T]``; None where every step counts.
        exclude: dimensions along which each slice has a mean of its own.
        floor: least deviation to divide by.

    Returns:
        ``[*B, T, ...]``, zeros where steps do not count.

    Example:
        >>> standardise(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False]))
        tensor([-0.7071,  0.7071,  0.0000])
    """
    own = {dim % values.ndim for dim in exclude}
    dims = [dim for dim in range(values.ndim) if dim not in own]
    where = spread(counted, values)
    one = torch.ones_like(values) if where is None else where.to(values.dtype)
    number = one.sum(dims, keepdim=True)
    mean = kept(values, counted).sum(dims, keepdim=True) / number.clamp(min=1)
    square = kept((values - mean).square(), counted).sum(dims, keepdim=True)
    deviation = (square / (number - 1).clamp(min=1)).sqrt().clamp(min=floor)
    return kept((values - mean) / deviation, counted)
