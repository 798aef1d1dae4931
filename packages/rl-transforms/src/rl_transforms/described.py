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


def limited(spec: TensorSpec, change: Callable[[Tensor], Tensor]) -> TensorSpec:
    """Describe a leaf after a change that sets limits of its own, as clipping does.

    Args:
        spec: the leaf's spec, all sizes known.
        change: of a leaf, entry by entry; it keeps the order of values.

    Returns:
        A `Bounded` between the changes of the least and the largest value that the spec allows; as
        `described` where the spec is of another kind.

    Example:
        >>> limited(Unbounded((2,)), lambda x: x.clamp(-1, None))
        BoundedContinuous(shape=(2,), low=-1.0, high=inf, dtype=torch.float32, device=cpu)
    """
    if not isinstance(spec, Unbounded) or spec.dtype == torch.bool:
        return described(spec, change)
    zero = spec.zero()
    whole = None if zero.is_floating_point() else torch.iinfo(zero.dtype)
    least, most = (-torch.inf, torch.inf) if whole is None else (whole.min, whole.max)
    low, high = change(torch.full_like(zero, least)), change(torch.full_like(zero, most))
    return Bounded(low, high, dtype=low.dtype, device=spec.device)


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
