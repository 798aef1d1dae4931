"""Numbers without bounds."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from rl_specs.core.leaf import Leaf
from rl_specs.core.placement import as_device, as_dtype, chosen_domain, is_integer, kept_domain
from rl_specs.leaves.boxes import ContinuousBox
from rl_specs.leaves.interval import clip, limits


class Unbounded(Leaf):
    """Any number of a dtype: only shape and dtype count.

    Making one gives an `UnboundedContinuous` or an `UnboundedDiscrete`, as `domain` or else the
    dtype says. Floats are drawn from a normal distribution, integers uniformly over the whole
    dtype. `zero()` is always a member; so are infinities and NaN, which `rand` never draws.

    Args:
        shape: sizes of the data, -1 where dynamic.
        device: device of the data; None for torch's default.
        dtype: None for torch's default float, or int64 where the domain is discrete.
        domain: `"continuous"` or `"discrete"`; None for what the dtype says.

    Raises:
        ValueError: the domain is not known.

    Example:
        >>> Unbounded((3,))
        UnboundedContinuous(shape=(3,), dtype=torch.float32, device=cpu)
    """

    _default_domain: ClassVar[str | None] = None
    _kept_domain: str | None = None  # what a dtype before a cast did not say

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Choose between the continuous and the discrete class."""
        if cls is not Unbounded:
            return super().__new__(cls)
        dtype = kwargs.get("dtype", args[2] if len(args) > 2 else None)
        domain = chosen_domain(kwargs.get("domain"), dtype)
        chosen = UnboundedContinuous if domain == "continuous" else UnboundedDiscrete
        return object.__new__(chosen)  # type: ignore[return-value]

    def __init__(
        self,
        shape: Any = (1,),
        device: Any = None,
        dtype: torch.dtype | str | None = None,
        *,
        domain: str | None = None,
    ) -> None:
        domain = domain or self._default_domain
        if dtype is None:
            dtype = torch.int64 if domain == "discrete" else torch.get_default_dtype()
        super().__init__(shape, None, as_device(device), as_dtype(dtype), domain)

    @property
    def space(self) -> ContinuousBox:
        """The finite limits of the dtype."""
        low, high = (
            torch.tensor(limit, dtype=self._dtype, device=self._device).expand(self._safe)
            for limit in limits(self._dtype)
        )
        return ContinuousBox(low, high)

    def _sample(self, shape: torch.Size) -> Tensor:
        if not is_integer(self._dtype):
            return torch.randn(shape, dtype=self._dtype, device=self._device)
        out = torch.empty(shape, dtype=self._dtype, device=self._device)
        if self._dtype == torch.bool:
            return out.random_(0, 2)
        return out.random_(int(limits(self._dtype)[0]), None)

    def _contains(self, val: Tensor) -> bool:
        return True

    def _nearest(self, val: Tensor) -> Tensor:
        if not is_integer(self._dtype):
            return val.to(self._dtype)
        return clip(val, self.space.low, self.space.high, self._dtype)

    def _moved(self, dtype: torch.dtype, device: torch.device) -> Self:
        if dtype == self._dtype:
            return super()._moved(dtype, device)
        kept = self._kept_domain or kept_domain(self._domain, self._dtype)
        out = Unbounded(self._shape, device, dtype, domain=kept)
        out._kept_domain = kept
        return out  # type: ignore[return-value]


class UnboundedContinuous(Unbounded):
    """Any real number: an `Unbounded` whose domain is continuous.

    Example:
        >>> UnboundedContinuous((2,)).domain
        'continuous'
    """

    _default_domain = "continuous"


class UnboundedDiscrete(Unbounded):
    """Any whole number: an `Unbounded` whose domain is discrete, int64 by default.

    Example:
        >>> UnboundedDiscrete((2,)).dtype
        torch.int64
    """

    _default_domain = "discrete"
