"""A normal distribution of vectors with independent entries, free or sent between bounds."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from rl_policies.modules.call_notes import require_tensor
from rl_tensordict import as_tensor, note_errors

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class LocScale(Distribution):
    """Parameters, shapes and noise of x = loc + scale ε with ε standard normal.

    `upscale` bounds `|loc|` where `tanh_loc` is set. `validate_args` waits for the device.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float,
        event_dims: int = 1,
        upscale: float = 5.0,
        tanh_loc: bool = False,
        validate_args: bool = False,
    ) -> None:
        if not isinstance(loc, Tensor) or not loc.is_floating_point():
            came = loc.dtype if isinstance(loc, Tensor) else type(loc).__name__
            msg = f"loc must be a floating-point tensor: got {came}"
            raise TypeError(msg)
        scale = scale if isinstance(scale, Tensor) else constant(scale, loc, "scale")
        if loc.shape != scale.shape:
            loc, scale = _broadcast(loc, scale)
        self.loc = upscale * (loc / upscale).tanh() if tanh_loc else loc
        self.scale = scale
        if validate_args:
            self._check_values()
        self._set_shapes(event_dims, validate_args)

    def _set_shapes(self, event_dims: int, validate_args: bool) -> None:
        shape = self.loc.shape
        if not isinstance(event_dims, int) or not 0 <= event_dims <= len(shape):
            msg = f"event_dims must be 0 to {len(shape)} for loc {tuple(shape)}: got {event_dims}"
            raise ValueError(msg)
        cut = len(shape) - event_dims
        # what Distribution.__init__ would set, in a tenth of the time
        self._batch_shape, self._event_shape = shape[:cut], shape[cut:]
        self._validate_args = validate_args
        self._event_axes = (-1,) if event_dims == 1 else tuple(range(-event_dims, 0))

    def _check_values(self) -> None:
        for name, value in (("loc", self.loc), ("scale", self.scale)):
            wrong = ~value.isfinite() | (value <= 0 if name == "scale" else False)
            if bool(wrong.any()):
                rule = "finite and positive" if name == "scale" else "finite"
                msg = (
                    f"{name} of shape {tuple(value.shape)} must be {rule}: {int(wrong.sum())} of "
                    f"{value.numel()} entries are not. Look at the network that computed them."
                )
                raise ValueError(msg)

    @note_errors
    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Repeat the rows; the parameters are shared."""
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.__dict__.update(self.__dict__)
        shape = (*batch_shape, *self.event_shape)
        new.loc, new.scale = self.loc.expand(shape), self.scale.expand(shape)
        new._set_shapes(len(self.event_shape), bool(self._validate_args))
        return new

    def _draw_normal(self, sample_shape: Any) -> tuple[Tensor, Tensor]:
        """Draw x with gradient, and the noise it was made of: both `[*S, *B, *E]`."""
        loc = self.loc
        like = loc.expand(self._extended_shape(sample_shape)) if sample_shape else loc
        noise = torch.empty_like(like).normal_()
        return torch.addcmul(loc, noise, self.scale), noise

    def _sum_event(self, value: Tensor) -> Tensor:
        # no axes would mean all of them
        return value.sum(self._event_axes) if self._event_axes else value

    def _surprise(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """What each entry takes from the log-density: ½ z² + log scale, z = (x - loc) / scale."""
        if z is None:
            z = (x - self.loc) / self.scale
        return torch.addcmul(self.scale.log(), z, z, value=0.5)

    def _log_density(self, surprise: Tensor, constant: float = HALF_LOG_2PI) -> Tensor:
        """Sum what entries take from the log-density, and a constant for each of them."""
        # a number minus a tensor would go through Python, which costs more
        return torch.rsub(self._sum_event(surprise), -constant * self._event_shape.numel())

    def _check_event(self, value: Tensor) -> None:
        check_event(value, self.event_shape)
        if self._validate_args:
            self._validate_sample(value)


class BoundedLocScale(LocScale):
    """Parameters and bounds of vectors that come of x = loc + scale ε."""

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
        self._plain = are_plain(low, high)
        if not self._plain:
            check_bounds(low, high, validate_args, finite=self._needs_finite)
        self.low: Tensor | float = low if self._plain else placed(low, self.loc)
        self.high: Tensor | float = high if self._plain else placed(high, self.loc)
        self._prepare()

    _needs_finite = False

    def _prepare(self) -> None:
        """Precompute values that several methods use."""

    @note_errors
    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Repeat the rows; the parameters are shared."""
        new = super().expand(batch_shape, _instance)
        new._prepare()  # what is computed of the parameters has their shape
        return new

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> Any:
        """Numbers between the bounds, in as many dimensions as the event has."""
        inside = constraints.interval(self.low, self.high)
        return constraints.independent(inside, len(self.event_shape))

    def _held(self, value: Tensor) -> Tensor:
        """Clamp values to the bounds, which rounding of a sum may exceed."""
        low, high = as_tensor(self.low), as_tensor(self.high)
        return value.clamp(low.to(value), high.to(value))


def check_event(value: Any, size: torch.Size) -> None:
    """Raise for values that do not end in the shape of an event."""
    require_tensor(value, "values")
    if value.shape[value.ndim - len(size) :] != size:
        msg = f"expected values that end in {tuple(size)}: got shape {tuple(value.shape)}"
        raise ValueError(msg)


def constant(value: Any, like: Tensor, name: str) -> Tensor:
    """A number as a tensor of the shape, dtype and device of another one."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        msg = f"{name} must be a tensor or a number: got {type(value).__name__}"
        raise TypeError(msg)
    return torch.full_like(like, value)  # type: ignore[arg-type]


def _broadcast(loc: Tensor, scale: Tensor) -> list[Tensor]:
    try:
        return list(torch.broadcast_tensors(loc, scale))
    except RuntimeError:
        msg = f"loc {tuple(loc.shape)} and scale {tuple(scale.shape)} do not fit each other"
        raise ValueError(msg) from None


def normal_kl(p: LocScale, q: LocScale) -> Tensor:
    """Kullback-Leibler divergence of two normal distributions, summed over the event."""
    # log(σ_q / σ_p) + (σ_p² + (μ_p - μ_q)²) / (2 σ_q²) - ½
    ratio = (p.scale / q.scale) ** 2
    shift = ((p.loc - q.loc) / q.scale) ** 2
    return p._sum_event(0.5 * (ratio + shift - 1 - ratio.log()))


def are_plain(low: Any, high: Any) -> bool:
    """Whether bounds are the numbers -1 and 1; tensors are not read."""
    return not (isinstance(low, Tensor) or isinstance(high, Tensor)) and (low, high) == (-1, 1)


def check_bounds(low: Any, high: Any, wait: bool = True, *, finite: bool = False) -> None:
    """Raise unless low < high; tensors are read, a device sync, only with `wait`."""
    numbers = not (isinstance(low, Tensor) or isinstance(high, Tensor))
    if not (low < high if numbers else not wait or bool((low < high).all())):
        msg = f"low must be below high: got {low} and {high}"
        raise ValueError(msg)
    if finite and (numbers or wait) and not bool(as_tensor(high - low).isfinite().all()):
        msg = f"expected finite bounds, got {low} and {high}: TruncatedNormal takes infinite ones."
        raise ValueError(msg)


def placed(bound: Tensor | float, loc: Tensor) -> Tensor:
    """Return a bound as a tensor with the dtype and device of the parameters."""
    if isinstance(bound, Tensor):
        return bound.to(loc)
    return torch.full((), bound, dtype=loc.dtype, device=loc.device)
