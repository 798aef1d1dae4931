"""Results of steps, checked, as the loops take them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from rl_tensordict.arguments import shown
from rl_tensordict.types import Flags, Floats

TensorLike = torch.Tensor | ArrayLike


class Results(NamedTuple):
    """Results of a step in each of k edges of B trees."""

    reward: Floats  # [B, k]
    discount: Floats  # [B, k]
    done: Flags  # [B, k]
    logits: Floats  # [B, k, A]
    legal: Flags  # [B, k, A]
    value: Floats  # [B, k]


def results_of(  # noqa: PLR0913 - what a model gives, entry by entry
    shape: tuple[int, ...],
    num_actions: int,
    reward: TensorLike,
    logits: TensorLike,
    value: TensorLike,
    discount: TensorLike,
    done: TensorLike | None,
    legal: TensorLike | None,
) -> Results:
    """Results of a shape `[B]` or `[B, k]`; numbers that are read are finite."""
    grid = (*shape, 1)[:2]
    rewards = floats_of(reward, shape, "reward")
    ends = flags_of(done, shape, "done", default=False)
    values = floats_of(value, shape, "value", done=ends)
    factors = floats_of(discount, shape, "discount", number=True)
    priors, allowed = priors_of(logits, legal, (*shape, num_actions), ends)
    wide = (*grid, num_actions)
    return Results(
        rewards.reshape(grid),
        factors.reshape(grid),
        ends.reshape(grid),
        priors.reshape(wide),
        allowed.reshape(wide),
        values.reshape(grid),
    )


def priors_of(
    logits: TensorLike, legal: TensorLike | None, shape: tuple[int, ...], done: Flags
) -> tuple[Floats, Flags]:
    """Logits and legal actions that can be searched."""
    allowed = flags_of(legal, shape, "legal", default=True)
    priors = floats_of(logits, shape, "logits", unread=~allowed, done=done[..., None])
    if legal is not None and len(stuck := np.argwhere(~allowed.any(-1) & ~done)):
        raise ValueError(
            f"the node at {tuple(stuck[0].tolist())} has no legal action and is not done: pass "
            "done, or mark an action as legal."
        )
    return priors, allowed


def array_of(values: TensorLike, name: str) -> NDArray[Any]:
    """A tensor, an array or numbers as an array."""
    try:
        array = values.numpy(force=True) if isinstance(values, torch.Tensor) else np.asarray(values)
    except (ValueError, TypeError, RuntimeError, NotImplementedError):  # ragged, sparse, no data
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected numbers, or a tensor or an array, got {shown(values)}.")
    return array


def floats_of(
    values: TensorLike,
    shape: tuple[int, ...],
    name: str,
    *,
    done: NDArray[np.bool_] | None = None,
    unread: NDArray[np.bool_] | None = None,
    number: bool = False,
) -> NDArray[np.float64]:
    """Numbers as float64 of a shape, or one `number` for all; finite unless they are not read."""
    given = array_of(values, name)
    if number and not given.ndim:
        given = np.full(shape, given)
    if given.shape != shape:
        raise ValueError(f"{name} must be {list(shape)}, got {list(given.shape)}.")
    array = np.ascontiguousarray(given, np.float64)
    if math.isfinite(np.vdot(array, array)):  # then every number is
        return array
    wrong = ~np.isfinite(array)
    for ignored in (done, unread):
        if ignored is not None:
            wrong &= ~ignored
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        raise ValueError(f"{name} at {place} is not finite: {array[place]}.")
    return array


def flags_of(
    values: TensorLike | None, shape: tuple[int, ...], name: str, *, default: bool
) -> NDArray[np.bool_]:
    """Flags of a shape."""
    if values is None:
        return _equal_flags(shape, default)
    given = array_of(values, name)
    if given.dtype != np.bool_ or given.shape != shape:
        raise ValueError(
            f"{name} must be bool {list(shape)}, got {given.dtype} {list(given.shape)}."
        )
    return np.ascontiguousarray(given)


@lru_cache(maxsize=64)
def _equal_flags(shape: tuple[int, ...], value: bool) -> NDArray[np.bool_]:
    """Flags that are all equal; nothing writes into them."""
    return np.full(shape, value)
