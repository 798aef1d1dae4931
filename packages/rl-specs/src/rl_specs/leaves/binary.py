"""Vectors of bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_specs.core.leaf import Leaf
from rl_specs.core.placement import as_device, as_dtype
from rl_specs.core.sizes import as_size
from rl_specs.leaves.boxes import BinaryBox
from rl_specs.leaves.interval import clip, whole, within


class Binary(Leaf):
    """Zeros and ones, each drawn with the same chance.

    `zero()` is always a member. `project` rounds and clips.

    Args:
        n: number of bits; None for the last size of `shape`.
        shape: sizes of the data, the last one n; None for `(n,)`.
        device: device of the data; None for torch's default.
        dtype: dtype of the data.

    Raises:
        TypeError: neither n nor a shape is given.
        ValueError: the last size is not n.

    Example:
        >>> Binary(2).enumerate()
        tensor([[0, 0],
                [0, 1],
                [1, 0],
                [1, 1]], dtype=torch.int8)
    """

    def __init__(
        self,
        n: int | None = None,
        shape: Any = None,
        device: Any = None,
        dtype: torch.dtype | str = torch.int8,
    ) -> None:
        if n is None and shape is None:
            msg = "Binary needs n or a shape: pass n=4 for four bits, or shape=() for one"
            raise TypeError(msg)
        size = as_size(n if shape is None else shape)
        if n is not None and n != (size[-1] if size else 0):
            msg = f"the last size must be the number of bits, {n}: got {tuple(size)}"
            raise ValueError(msg)
        super().__init__(size, None, as_device(device), as_dtype(dtype), "discrete")

    @property
    def n(self) -> int:
        """Number of bits: the last size, or 1 for a scalar."""
        return self._shape[-1] if self._shape else 1

    @property
    def space(self) -> BinaryBox:
        """The box of n bits."""
        return BinaryBox(self.n)

    def cardinality(self) -> float:
        """Count the vectors of n bits."""
        return int(2 ** abs(self.n))

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """List the vectors of n bits, the same in every row: `[2 ** n, *shape]`."""
        places = torch.arange(abs(self.n) - 1, -1, -1, device=self._device)
        numbers = torch.arange(int(self.cardinality()), device=self._device)
        bits = (numbers.unsqueeze(-1) >> places) & 1
        rows = bits.reshape(-1, *(1,) * (self.ndim - 1), len(places)) if self.ndim else bits[:, 0]
        return rows.to(self._dtype).expand(-1, *self._safe)

    def _sample(self, shape: torch.Size) -> Tensor:
        return torch.randint(2, shape, dtype=self._dtype, device=self._device)

    def _contains(self, val: Tensor) -> bool:
        return within(val, 0, 1) and whole(val)

    def _nearest(self, val: Tensor) -> Tensor:
        low, high = (torch.tensor(bit, device=val.device) for bit in (0, 1))
        return clip(val, low, high, torch.int64).to(self._dtype)

    def _describe(self) -> str:
        return f"n={self.n}"
