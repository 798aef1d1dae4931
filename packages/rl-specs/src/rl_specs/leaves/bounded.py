"""Numbers between two bounds."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from rl_specs.core.leaf import Leaf
from rl_specs.core.placement import as_device, as_dtype, chosen_domain, kept_domain
from rl_specs.core.sizes import TensorView, as_size, safe, without_repeats
from rl_specs.leaves.boxes import ContinuousBox
from rl_specs.leaves.interval import INT64_MAX, clip, limits, random_floats, random_integers, within
from rl_tensordict import UnfitValue


class Bounded(Leaf):
    """Numbers in a closed box, `low <= value <= high`.

    Making one gives a `BoundedContinuous` or a `BoundedDiscrete`, as `domain` or else the dtype
    says. Floats are drawn uniformly; with one infinite bound exponentially away from the finite
    one, and normally where both are infinite. Integers are drawn uniformly, both bounds included.
    `zero()` is a member only where `low <= 0 <= high`. NaN never is.

    Args:
        low: the smallest values, a number or an array.
        high: the largest values, likewise. Infinite bounds of an integer dtype are its limits.
        shape: sizes of the data, -1 where dynamic; None for the shape of the bounds.
        device: device of the data; None for torch's default.
        dtype: None for torch's default float, or int64 where the domain is discrete.
        domain: `"continuous"` or `"discrete"`; None for what the dtype says.

    Raises:
        TypeError: a bound is missing, or an argument is not known.
        ValueError: the bounds are crossed or NaN, do not fit the dtype or the shape.

    Example:
        >>> Bounded(-1, 1, shape=(3,))
        BoundedContinuous(shape=(3,), low=-1.0, high=1.0, dtype=torch.float32, device=cpu)
        >>> Bounded(0, 255, shape=(3,), dtype=torch.uint8).cardinality()
        16777216
    """

    _parts: ClassVar[tuple[str, ...]] = ("_low", "_high")
    _default_domain: ClassVar[str | None] = None
    _kept_domain: str | None = None  # what a dtype before a cast did not say
    _low: Tensor
    _high: Tensor

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Choose between the continuous and the discrete class."""
        if cls is not Bounded:
            return super().__new__(cls)
        dtype = kwargs.get("dtype", args[4] if len(args) > 4 else None)
        domain = chosen_domain(kwargs.get("domain"), dtype)
        chosen = BoundedContinuous if domain == "continuous" else BoundedDiscrete
        return object.__new__(chosen)  # type: ignore[return-value]

    def __init__(
        self,
        low: Any = None,
        high: Any = None,
        shape: Any = None,
        device: Any = None,
        dtype: torch.dtype | str | None = None,
        *,
        domain: str | None = None,
    ) -> None:
        if low is None or high is None:
            msg = f"Bounded needs low and high: got {low!r} and {high!r}. Pass math.inf for none."
            raise TypeError(msg)
        domain = domain or self._default_domain
        if dtype is None:
            dtype = torch.int64 if domain == "discrete" else torch.get_default_dtype()
        dtype, device = as_dtype(dtype), as_device(device)
        if dtype.is_complex:
            msg = f"complex numbers have no order, so no bounds: got {dtype}. Use Unbounded."
            raise TypeError(msg)
        smallest, largest = _bound(low, dtype, Tensor.ceil), _bound(high, dtype, Tensor.floor)
        size = _common_shape(smallest, largest, shape)
        super().__init__(size, None, device, dtype, domain)
        self._low, self._high = _expanded(smallest, self._safe), _expanded(largest, self._safe)
        # NaN fails here too; a bound at the wrong infinity leaves no number to draw
        reachable = (self._low < math.inf) & (self._high > -math.inf)
        if not ((self._low <= self._high) & reachable).all():
            msg = f"expected low <= high with a number between them: got {low} and {high}"
            raise ValueError(msg)
        self._find_range()
        move = partial(Tensor.to, device=device)
        self._low, self._high = (without_repeats(p, move) for p in (self._low, self._high))

    @property
    def low(self) -> Tensor:
        """Smallest values, shape and dtype of the spec."""
        return self._low

    @property
    def high(self) -> Tensor:
        """Largest values, shape and dtype of the spec."""
        return self._high

    @property
    def space(self) -> ContinuousBox:
        """Both bounds."""
        return ContinuousBox(self._low, self._high)

    def cardinality(self) -> float:
        """Count the members of the whole box: infinite for floats."""
        if self._dtype.is_floating_point:
            return math.inf
        if self._range is not None:
            width = int(self._range[1] - self._range[0] + 1)
            return int(width ** self._low.numel())
        bounds = zip(self._low.flatten().tolist(), self._high.flatten().tolist(), strict=True)
        return int(math.prod(high - low + 1 for low, high in bounds))

    def _find_range(self) -> None:
        """Note the bounds as two numbers if they are the same everywhere.

        One kernel with two numbers is several times faster than three with two tensors.
        """
        self._range: tuple[float, float] | None = None
        if not self._low.numel():
            return
        # copies, or the view of one number would keep the whole array in memory
        low, high = self._low.flatten()[0].clone(), self._high.flatten()[0].clone()
        if (self._low == low).all() and (self._high == high).all():
            self._low, self._high = low.expand(self._safe), high.expand(self._safe)
            self._range = (low.item(), high.item())

    def _sample(self, shape: torch.Size) -> Tensor:
        if self._range is None or not self._one_kernel(*self._range):
            if self._dtype.is_floating_point:
                return random_floats(self._low, self._high, shape)
            return random_integers(self._low.long(), self._high.long(), shape).to(self._dtype)
        low, high = self._range
        out = torch.empty(shape, dtype=self._dtype, device=self._device)
        if self._dtype.is_floating_point:
            return out.uniform_(low, high)
        # torch has no number above the largest int64: None means it
        return out.random_(int(low), None if high == INT64_MAX else int(high) + 1)

    def _one_kernel(self, low: float, high: float) -> bool:
        """Tell whether torch can draw from the range: not from one wider than the dtype."""
        return not self._dtype.is_floating_point or high - low <= limits(self._dtype)[1]

    def _contains(self, val: Tensor) -> bool:
        if self._range is not None:
            return within(val, *self._range)
        low, high = self._low.to(val.device), self._high.to(val.device)
        return bool(((val >= low) & (val <= high)).all())

    def _nearest(self, val: Tensor) -> Tensor:
        return clip(val, self._low, self._high, self._dtype)

    def _moved(self, dtype: torch.dtype, device: torch.device) -> Self:
        if dtype == self._dtype:
            return super()._moved(dtype, device)
        kept = self._kept_domain or kept_domain(self._domain, self._dtype)
        out = Bounded(self._low, self._high, self._shape, device, dtype, domain=kept)
        out._kept_domain = kept
        return out  # type: ignore[return-value]

    def _describe(self) -> str:
        return f"low={_short(self._low)}, high={_short(self._high)}"


class BoundedContinuous(Bounded):
    """Real numbers between two bounds: a `Bounded` whose domain is continuous.

    Example:
        >>> BoundedContinuous(0, 1, shape=(2,)).domain
        'continuous'
    """

    _default_domain = "continuous"


class BoundedDiscrete(Bounded):
    """Whole numbers between two bounds: a `Bounded` whose domain is discrete, int64 by default.

    Example:
        >>> BoundedDiscrete(0, 2, shape=()).rand().dtype
        torch.int64
    """

    _default_domain = "discrete"


def _bound(value: Any, dtype: torch.dtype, inward: TensorView) -> Tensor:
    """Write a bound in the dtype of the spec, rounding inward where that is an integer."""
    try:
        given = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        bound = given.detach().cpu()
        real = not bound.is_complex() and bound.layout is torch.strided
    except (TypeError, ValueError, RuntimeError):
        real = False
    if not real:
        msg = f"expected a bound as a number, or an array of numbers: got {value!r}"
        raise TypeError(msg)
    if dtype.is_floating_point or not bound.is_floating_point():
        smallest, largest = limits(dtype)
        if not dtype.is_floating_point and not within(bound, smallest, largest):
            msg = f"expected bounds that {dtype} can hold ({smallest} to {largest}): got {value}"
            raise ValueError(msg)
        return bound.to(dtype)
    rounded = inward(bound)
    low, high = (torch.tensor(limit, dtype=dtype, device="cpu") for limit in limits(dtype))
    finite = rounded[rounded.isfinite()]
    if rounded.isnan().any() or not within(finite, *limits(dtype)):
        msg = f"expected bounds that {dtype} can hold: got {value}"
        raise ValueError(msg)
    return clip(rounded, low, high, dtype)


def _common_shape(low: Tensor, high: Tensor, shape: Any) -> torch.Size:
    if shape is not None:
        return as_size(shape)
    if not low.ndim and not high.ndim:
        msg = "Bounded needs a shape where both bounds are numbers: pass shape=() for a scalar"
        raise ValueError(msg)
    try:
        return torch.Size(torch.broadcast_shapes(low.shape, high.shape))
    except RuntimeError:
        msg = f"low and high must have one shape: got {tuple(low.shape)} and {tuple(high.shape)}"
        raise ValueError(msg) from None


def _expanded(bound: Tensor, shape: torch.Size) -> Tensor:
    try:
        return bound.clone().expand(shape)
    except RuntimeError:
        msg = f"a bound of shape {tuple(bound.shape)} does not fit the shape {tuple(safe(shape))}"
        raise UnfitValue(msg) from None


def _short(bound: Tensor) -> str:
    """Write a bound in one line: all of it, or its extremes."""
    if not bound.numel():
        return "[]"
    smallest, largest = (value.item() for value in bound.aminmax())
    if smallest == largest:
        return str(smallest)
    return str(bound.tolist()) if bound.numel() <= 6 else f"[{smallest} .. {largest}]"
