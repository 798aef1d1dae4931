"""Choices: a mask that can forbid some, their number, and their positions as one-hot vectors."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rl_specs.core.leaf import Leaf
from rl_specs.leaves.interval import limits
from rl_tensordict import UnfitValue


class Masked(Leaf):
    """A spec of choices, some of which a boolean mask may forbid.

    The mask has the shape of the one-hot form of the data: True where a choice is allowed.
    """

    _parts: ClassVar[tuple[str, ...]] = ("mask",)
    mask: Tensor | None

    @property
    def _choices(self) -> int:
        """Number of entries of one row of the mask, -1 where any number will do."""
        raise NotImplementedError

    def update_mask(self, mask: Any) -> None:
        """Set which choices are allowed, in place. The mask is copied.

        Args:
            mask: bool, a shape that broadcasts to that of the one-hot form; None to allow all.

        Raises:
            ValueError: the mask is not bool, or its shape does not fit.
        """
        if mask is None:
            self.mask = None
            return
        try:
            given = mask if isinstance(mask, Tensor) else torch.as_tensor(mask, device="cpu")
        except (TypeError, ValueError, RuntimeError):
            msg = f"a mask must be a tensor, or a list, of bools: got {mask!r}"
            raise TypeError(msg) from None
        if given.dtype != torch.bool:
            msg = f"a mask must be bool, True where allowed: got {given.dtype}. Pass mask.bool()."
            raise ValueError(msg)
        choices = given.shape[-1] if self._choices < 0 and given.ndim else self._choices
        rows = given.reshape(choices) if given.numel() == choices else given
        shape = (*self._safe[: self.ndim - self.domain_dims], choices)
        try:
            self.mask = rows.clone().expand(shape).to(self._device)
        except RuntimeError:
            msg = f"a mask must broadcast to {tuple(shape)}: got shape {tuple(given.shape)}"
            raise UnfitValue(msg) from None

    def _describe_mask(self) -> str:
        if self.mask is None:
            return ""
        shown = self.mask.tolist() if self.mask.numel() <= 6 else f"<{tuple(self.mask.shape)}>"
        return f"mask={shown}"


def checked_count(n: Any, dynamic: bool = False) -> int:
    """Check a number of choices."""
    try:
        count = int(n)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        count = None
    if count is None or count != n:
        msg = f"the number of choices must be an integer: got {n!r}"
        raise TypeError(msg)
    if count < 1 and not (dynamic and count == -1):
        msg = f"the number of choices must be positive{', or -1' if dynamic else ''}: got {n}"
        raise ValueError(msg)
    return count


def check_room(n: int, dtype: torch.dtype) -> None:
    """Check that a dtype can hold every choice."""
    largest = limits(dtype)[1]
    if dtype.is_floating_point:  # above it not every whole number is one
        largest = min(largest, int(2 / torch.finfo(dtype).eps))
    if n - 1 > largest:
        msg = f"{dtype} cannot hold {n} choices: its largest value is {largest}. Pass torch.int64."
        raise ValueError(msg)


def hot(index: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Write positions as one-hot vectors."""
    out = torch.zeros((*index.shape, n), dtype=dtype, device=index.device)
    try:
        # [*rows, n], a one at [*rows, index]
        return out.scatter_(-1, index.long().unsqueeze(-1), 1)
    except RuntimeError:
        msg = f"expected choices from 0 to {n - 1}: got {index}"
        raise ValueError(msg) from None


def pick(tensor: Tensor, index: Tensor) -> Tensor:
    """Read the last dimension of a tensor at one position for each row."""
    try:
        rows = torch.broadcast_shapes(tensor.shape[:-1], index.shape)
        # one position for each row: [*rows, 1], as gather wants it
        places = index.long().expand(rows).unsqueeze(-1)
        return tensor.expand(*rows, tensor.shape[-1]).gather(-1, places).squeeze(-1)
    except (RuntimeError, IndexError, AttributeError):
        found = [getattr(value, "shape", type(value).__name__) for value in (tensor, index)]
        msg = (
            f"expected entries [*rows, n] and positions 0 to n - 1 that the rows broadcast with: "
            f"got {found[0]} and {found[1]}"
        )
        raise ValueError(msg) from None


def one_hot_everywhere(val: Tensor) -> bool:
    """Tell whether every row holds a single one, and zeros."""
    if val.dtype == torch.bool:
        return bool((val.sum(-1) == 1).all())
    return bool(((val == 1).sum(-1) == 1).all() and ((val != 0).sum(-1) == 1).all())


def choose(mask: Tensor, shape: torch.Size) -> Tensor:
    """Draw one allowed entry of each row, all with the same chance."""
    _check_rows(mask)
    lots = torch.rand((*shape, mask.shape[-1]), device=mask.device)
    # lots are never negative, so a forbidden entry never wins
    return lots.masked_fill_(~mask, -1.0).argmax(-1)


def nearest_choice(val: Tensor, mask: Tensor) -> Tensor:
    """Find the allowed position nearest to each value."""
    _check_rows(mask)
    mask = mask.to(val.device)
    places = torch.arange(mask.shape[-1], device=val.device)
    # clamped first: far beyond the last place all distances would round to the same number
    value = val.double().nan_to_num(nan=0.0).clamp(-1, mask.shape[-1]).unsqueeze(-1)
    return (value - places).abs().masked_fill(~mask, torch.inf).argmin(-1)


def largest_choice(val: Tensor, mask: Tensor | None) -> Tensor:
    """Find the allowed position of the largest value of each row."""
    value = val.double().nan_to_num(nan=torch.finfo(torch.float64).min)
    if mask is not None:
        _check_rows(mask)
        value = value.masked_fill(~mask.to(val.device), -torch.inf)
    return value.argmax(-1)


def _check_rows(mask: Tensor) -> None:
    if not mask.any(-1).all():
        msg = "a mask forbids every choice of a row: allow one with update_mask"
        raise ValueError(msg)
