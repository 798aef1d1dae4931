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

    numbers: Floats  # [B, k, A + 3]: logits, then reward, discount and value
    done: Flags  # [B, k]
    legal: Flags  # [B, k, A]


def results_of(  # noqa: PLR0913 - what a model gives, entry by entry
    shape: tuple[int, ...],
    actions: int,
    reward: TensorLike,
    logits: TensorLike,
    value: TensorLike,
    discount: TensorLike,
    done: TensorLike | None,
    legal: TensorLike | None,
) -> Results:
    """Results of a shape `[B]` or `[B, k]`; numbers that are read are finite."""
    grid = (*shape, 1)[:2]
    numbers, wide = np.empty((*shape, actions + 3)), (*shape, actions)
    rewards, values = shaped(reward, shape, "reward"), shaped(value, shape, "value")
    priors, factors = shaped(logits, wide, "logits"), array_of(discount, "discount")
    if factors.ndim:
        factors = shaped(discount, shape, "discount")
    numbers[..., :actions], numbers[..., actions] = priors, rewards
    numbers[..., actions + 1], numbers[..., actions + 2] = factors, values
    ends = flags_of(done, shape, grid, "done", default=False)
    allowed = flags_of(legal, wide, (*grid, actions), "legal", default=True)
    if not math.isfinite(np.vdot(numbers, numbers)):  # otherwise every number is
        require_finite(priors, "logits", (allowed & ~ends[..., None]).reshape(wide))
        require_finite(values, "value", ~ends.reshape(shape))
        require_finite(rewards, "reward")
        require_finite(factors, "discount")
    if legal is not None:
        require_legal(allowed.reshape(wide), ends.reshape(shape))
    return Results(numbers.reshape(*grid, -1), ends, allowed)


def require_legal(legal: Flags, done: Flags) -> None:
    """Raises where an episode continues without a legal action."""
    if len(stuck := np.argwhere(~legal.any(-1) & ~done)):
        raise ValueError(
            f"the node at {tuple(stuck[0].tolist())} has no legal action and is not done: pass "
            "done, or mark an action as legal."
        )


def require_finite(array: NDArray[Any], name: str, read: Flags | None = None) -> None:
    """Raises where a number that is read is not finite."""
    wrong = ~np.isfinite(array) & (True if read is None else read)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        which = f"{name} at {place}" if place else name
        raise ValueError(f"{which} is not finite: {array[place]}.")


def array_of(values: TensorLike, name: str) -> NDArray[Any]:
    """A tensor, an array or numbers as an array."""
    try:
        array = values.numpy(force=True) if isinstance(values, torch.Tensor) else np.asarray(values)
    except (ValueError, TypeError, RuntimeError, NotImplementedError):  # ragged, sparse, no data
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected numbers, or a tensor or an array, got {shown(values)}.")
    return array


def shaped(values: TensorLike, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    """Numbers of a shape."""
    array = array_of(values, name)
    if array.shape != shape:
        raise ValueError(f"{name} must be {list(shape)}, got {list(array.shape)}.")
    return array


def flags_of(
    values: TensorLike | None,
    shape: tuple[int, ...],
    grid: tuple[int, ...],
    name: str,
    *,
    default: bool,
) -> Flags:
    """Flags of a shape, in the shape of the loops."""
    if values is None:
        return _equal_flags(grid, default)
    given = array_of(values, name)
    if given.dtype != np.bool_ or given.shape != shape:
        raise ValueError(
            f"{name} must be bool {list(shape)}, got {given.dtype} {list(given.shape)}."
        )
    return np.ascontiguousarray(given).reshape(grid)


@lru_cache(maxsize=64)
def _equal_flags(shape: tuple[int, ...], value: bool) -> Flags:
    """Flags that are all equal; nothing writes into them."""
    return np.full(shape, value)
