"""What a change of values makes of a leaf's spec."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl_specs import Bounded, TensorSpec, Unbounded


def described(spec: TensorSpec, change: Callable[[Tensor], Tensor]) -> TensorSpec:
    """Describe a leaf after a change that keeps or turns round the order of its values.

    Args:
        spec: the leaf's spec, all sizes known.
        change: of a leaf; entry by entry, or moving entries about.

    Returns:
        A `Bounded` between the changed bounds where there are bounds, otherwise an `Unbounded`.

    Raises:
        ValueError: a size is -1.

    Example:
        >>> described(Bounded(0, 255, (2,), dtype=torch.uint8), lambda x: x / 255)
        BoundedContinuous(shape=(2,), low=0.0, high=1.0, dtype=torch.float32, device=cpu)
    """
    if -1 in spec.shape:
        msg = f"the sizes of a leaf must be known to be changed: its spec has {list(spec.shape)}."
        raise ValueError(msg)
    if isinstance(spec, Bounded):
        ends = change(spec.low), change(spec.high)
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        return Bounded(low, high, dtype=low.dtype, device=spec.device)
    return without_bounds(spec, change)


def without_bounds(spec: TensorSpec, change: Callable[[Tensor], Tensor]) -> TensorSpec:
    """Describe a leaf after a change that may lead anywhere.

    Args:
        spec: the leaf's spec, all sizes known.
        change: of a leaf.

    Returns:
        An `Unbounded` of its shape and dtype.

    Example:
        >>> without_bounds(Bounded(0, 1, (2,)), lambda x: x.double()).dtype
        torch.float64
    """
    made = change(spec.zero())
    return Unbounded(made.shape, dtype=made.dtype, device=spec.device)
