"""Base of the bounded distributions: `TanhNormal` and `TruncatedNormal`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from rl_policies.distributions.loc_scale import LocScale


class BoundedLocScale(LocScale):
    """Parameters and bounds of vectors that come of x = loc + scale ε.

    Args:
        loc: floats `[*B, *E]`.
        scale: positive, broadcasts against `loc`; a number represents a constant.
        upscale: bound on `|loc|` where `tanh_loc` is set.
        low: lower bound, a number or broadcasting against `loc`.
        high: upper bound, likewise.
        event_dims: how many trailing dimensions are one event.
        tanh_loc: use upscale tanh(loc / upscale) in place of `loc`.
        validate_args: check the parameters and the values given to `log_prob`. This waits for
            the device.

    Raises:
        TypeError: `loc` is no tensor of floats.
        ValueError: shapes do not fit, a lower bound is not below the upper one, or values are
            refused.

    Example:
        >>> BoundedLocScale(torch.zeros(3, 2), 1.0, high=4.0).high
        tensor(4.)
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        loc: Tensor,
        scale: Tensor | float,
        upscale: float = 5.0,
        low: Tensor | float = -1.0,
        high: Tensor | float = 1.0,
        event_dims: int = 1,
        tanh_loc: bool = False,
        validate_args: bool = False,
    ) -> None:
        super().__init__(loc, scale, event_dims, upscale, tanh_loc, validate_args)
        # default bounds stay Python numbers: no tensors are made of them
        self._plain = not isinstance(low, Tensor) and (low, high) == (-1, 1)
        if not self._plain:
            check_bounds(low, high, validate_args, finite=self._needs_finite)
        self.low: Tensor | float = low if self._plain else placed(low, self.loc)
        self.high: Tensor | float = high if self._plain else placed(high, self.loc)
        self._prepare()

    _needs_finite = False

    def _prepare(self) -> None:
        """Precompute values that several methods use."""

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> Any:
        """Numbers between the bounds, in as many dimensions as the event has."""
        inside = constraints.interval(self.low, self.high)
        return constraints.independent(inside, len(self.event_shape))

    def _held(self, value: Tensor) -> Tensor:
        """Clamp values to the bounds, which rounding of a sum may exceed."""
        low, high = torch.as_tensor(self.low), torch.as_tensor(self.high)
        return value.clamp(low.to(value), high.to(value))


def check_bounds(low: Any, high: Any, wait: bool = True, *, finite: bool = False) -> None:
    """Raise unless low < high; tensors are read, a device sync, only with `wait`."""
    numbers = not (isinstance(low, Tensor) or isinstance(high, Tensor))
    if not (low < high if numbers else not wait or bool((low < high).all())):
        msg = f"low must be below high: got {low} and {high}"
        raise ValueError(msg)
    if finite and (numbers or wait) and not bool(torch.as_tensor(high - low).isfinite().all()):
        msg = f"expected finite bounds, got {low} and {high}: TruncatedNormal takes infinite ones."
        raise ValueError(msg)


def placed(bound: Tensor | float, loc: Tensor) -> Tensor:
    """Return a bound as a tensor with the dtype and device of the parameters."""
    if isinstance(bound, Tensor):
        return bound.to(loc)
    return torch.full((), bound, dtype=loc.dtype, device=loc.device)
