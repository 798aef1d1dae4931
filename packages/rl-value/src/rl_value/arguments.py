"""Checks of the numbers that returns are computed of, and arrays that returns derive from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_layout.internals import array_of
from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_integer, check_number, check_type, shown
from rl_value.scan.block_scan import is_transformed

FLOATS = (torch.float32, torch.float64)


def time_of(values: Tensor, time_dim: int) -> int:
    """Find the dimension of time, from the front."""
    if type(time_dim) is not int:
        check_integer("time_dim", time_dim)
    if values.ndim == 1:
        return 0
    if not -values.ndim <= time_dim < values.ndim:
        msg = (
            f"time_dim={time_dim}: there is no such dimension in {list(values.shape)}. "
            f"Pass {-values.ndim} to {values.ndim - 1}; rewards [*B, T, C] have time in -2."
        )
        raise ValueError(msg)
    return time_dim % values.ndim


def check_steps(reward: Tensor, **others: Tensor) -> None:
    """Hold every float array of one call to the shape of the reward."""
    for name, value in (("reward", reward), *others.items()):
        check_floats(name, value)
        if not value.ndim:
            msg = f"{name}: expected steps [*B, T, C], got a single number."
            raise ValueError(msg)
        if value.shape != reward.shape:
            msg = (
                f"{name}: expected the shape of the reward, {list(reward.shape)}, "
                f"got {list(value.shape)}. All steps have one shape [*B, T, C]."
            )
            raise ValueError(msg)


def check_floats(name: str, value: Tensor) -> None:
    """Raise where something is no plain tensor of full precision."""
    check_tensor(name, value)
    if value.dtype not in FLOATS:
        msg = f"{name}: expected float32 or float64, got {value.dtype}. Call .float()."
        raise TypeError(msg)


def check_tensor(name: str, value: object) -> None:
    """Raise where something is no plain tensor."""
    if not isinstance(value, Tensor):
        msg = f"{name}: expected a tensor, got {type(value).__name__}. Call torch.as_tensor."
        raise TypeError(msg)
    if value.layout != torch.strided:
        msg = f"{name}: expected a dense tensor, got {value.layout}. Call .to_dense()."
        raise TypeError(msg)


def floats(values: Tensor, key: NestedKey) -> Tensor:
    """Raise for an entry that is no tensor of floating point."""
    given: object = values
    if not isinstance(given, Tensor):
        msg = f"{key!r}: expected a tensor of floats, got {type(given).__name__}."
        raise TypeError(msg)
    if not values.is_floating_point():
        msg = f"{key!r}: expected floating point, got {values.dtype}. Call .float()."
        raise TypeError(msg)
    return values


def check_step_values(name: str, values: object, batch: Sequence[int]) -> None:
    """Raise where something is no tensor of one number for each step of a batch."""
    if not isinstance(values, Tensor):
        check_type(name, values, Tensor, "a tensor or None")
    elif values.shape[: len(batch)] != batch:
        msg = f"{name}: expected {[*batch, 1]}, one of each step, got {list(values.shape)}."
        raise ValueError(msg)


def check_flags(reward: Tensor, **flags: Tensor) -> None:
    """Hold every flag of one call to booleans that fit the reward."""
    for name, flag in flags.items():
        check_tensor(name, flag)
        if flag.dtype != torch.bool:
            msg = f"{name}: expected torch.bool, got {flag.dtype}. Call .bool()."
            raise TypeError(msg)
        if flag.shape != reward.shape and flag.shape != (*reward.shape[:-1], 1):
            msg = (
                f"{name}: expected {list(reward.shape)} like the reward, or 1 in the last "
                f"dimension, got {list(flag.shape)}. Call reshape or unsqueeze(-1)."
            )
            raise ValueError(msg)
    terminated, done = flags.get("terminated"), flags.get("done")
    if terminated is None or done is None or is_transformed():
        return
    if not (terminated.is_cpu and done.is_cpu):  # a look would wait for the device
        return
    wrong = np.greater(array_of(terminated), array_of(done))  # terminated, and not done
    if wrong.any():
        count = int(wrong.sum())
        msg = (
            f"{count} steps are terminated and not done, and a step that terminated is done: are "
            "the two swapped? terminated is the argument before done: pass them as keywords."
        )
        raise ValueError(msg)


def check_bounds(**bounds: Any) -> None:
    """Hold numbers that bound something to 0 or more."""
    for name, bound in bounds.items():
        is_number = isinstance(bound, Real) or (isinstance(bound, Tensor) and bound.numel() == 1)
        if not is_number or not bound >= 0:
            msg = f"{name}: expected a number of 0 or more, got {shown(bound)}."
            raise ValueError(msg) if is_number else TypeError(msg)


def check_weights(**weights: Any) -> None:
    """Hold weights of losses to finite numbers of 0 or more."""
    for name, weight in weights.items():
        check_number(name, weight)
        if not 0 <= weight < math.inf:
            msg = f"{name}: expected a finite number of 0 or more, got {weight}."
            raise ValueError(msg)


def check_fraction(name: str, value: float | Tensor, shape: torch.Size | None = None) -> None:
    """Hold a discount or a mixing factor to [0, 1]."""
    if not isinstance(value, Tensor | Real):
        msg = f"{name}: expected a number in [0, 1], or a tensor of one per step, got {value!r}."
        raise TypeError(msg)
    if isinstance(value, Tensor):
        check_tensor(name, value)
        if value.dtype == torch.bool or value.is_complex():
            msg = f"{name}: expected numbers in [0, 1], got {value.dtype}."
            raise TypeError(msg)
    if isinstance(value, Tensor) and (is_transformed() or not value.numel()):
        return
    low, high = (
        tuple(map(float, value.detach().aminmax())) if isinstance(value, Tensor) else (value, value)
    )
    if not (low >= 0 and high <= 1):
        got = f"{value}" if low == high else f"values from {low} to {high}"
        msg = f"{name}: expected a number in [0, 1], or one per step, got {got}."
        raise ValueError(msg)
    if shape is not None and isinstance(value, Tensor) and not broadcasts(value.shape, shape):
        got = f"got {list(value.shape)}"
        msg = f"{name}: expected a shape that broadcasts to {list(shape)}, {got}."
        raise ValueError(msg)


def broadcasts(shape: torch.Size, whole: torch.Size) -> bool:
    """Whether arrays of one shape broadcast to another one."""
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(small in (1, large) for small, large in pairs)


def cut_after(done: Tensor, time_dim: int) -> Tensor:
    """Mark the steps after which nothing flows: done ones, and the last ones of time."""
    cut = done.clone()
    if cut.numel():
        cut.select(time_of(done, time_dim), -1).fill_(True)
    return cut


def zeroed(values: Tensor, flag: Tensor) -> Tensor:
    """Put zeros where a flag is set, whatever was there."""
    plain = values.device.type == "cpu" and values.shape == flag.shape
    if values.requires_grad or not plain or is_transformed():
        return torch.where(flag, 0, values)  # one kernel; `masked_fill` copies first
    return _zero(
        torch.empty_like(values, memory_format=torch.contiguous_format).copy_(values), flag
    )


def _zero(values: Tensor, flag: Tensor) -> Tensor:
    """Write zeros where a flag of the same shape is set."""
    if values.device.type != "cpu" or not values.is_contiguous():
        return values.masked_fill_(flag, 0)
    rows, where = np.from_dlpack(values.view(-1)), np.from_dlpack(flag.reshape(-1))
    np.copyto(rows, 0, where=where)  # several times faster than torch
    return values


def decay_of(gamma: float | Tensor, lmbda: float | Tensor, cut: Tensor, reward: Tensor) -> Tensor:
    """Multiply the factors of a recurrence, with zeros at cuts."""
    if isinstance(gamma, Tensor) and isinstance(lmbda, Tensor):
        gamma = gamma.to(reward.dtype)  # so is the product
    factor = gamma * lmbda
    if isinstance(factor, Tensor):
        wide = factor.to(reward.dtype).expand(reward.shape)
    else:
        wide = torch.full_like(reward, factor, requires_grad=False)
        if cut.shape == wide.shape and not is_transformed():
            return _zero(wide, cut)
    return zeroed(wide, cut)
