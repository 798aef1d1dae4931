"""One of n choices, written as an integer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from rl_specs.core.placement import as_device, as_dtype
from rl_specs.leaves.boxes import CategoricalBox
from rl_specs.leaves.interval import clip, limits, whole, within
from rl_specs.leaves.masked import Masked, choose, nearest_choice

if TYPE_CHECKING:
    from rl_specs.leaves.one_hot import OneHot


class Categorical(Masked):
    """Integers from 0 to n - 1, drawn with the same chance.

    `zero()` is a member, unless a mask forbids choice 0. `project` finds the nearest allowed one.

    Args:
        n: number of choices; -1 where it is not known yet, see `set_provisional_n`.
        shape: sizes of the data; None for a scalar.
        device: where the data lies; None for torch's default.
        dtype: dtype of the data.
        mask: bool, broadcasts to `[*shape, n]`, True where a choice is allowed.

    Raises:
        ValueError: n is neither positive nor -1, or the mask does not fit.

    Example:
        >>> spec = Categorical(3, shape=(2,), mask=torch.tensor([False, True, False]))
        >>> spec.rand()
        tensor([1, 1])
    """

    def __init__(
        self,
        n: int,
        shape: Any = None,
        device: Any = None,
        dtype: torch.dtype | str = torch.int64,
        mask: Any = None,
    ) -> None:
        n, dtype = checked_count(n, dynamic=True), as_dtype(dtype)
        check_room(n, dtype)
        super().__init__(shape, CategoricalBox(n), as_device(device), dtype, "discrete")
        self._provisional_n: int | None = None
        self.update_mask(mask)

    def _moved(self, dtype: torch.dtype, device: torch.device) -> Self:
        if dtype != self._dtype:
            self._check_room(dtype)
        return super()._moved(dtype, device)

    def _check_room(self, dtype: torch.dtype) -> None:
        check_room(self._space.n, dtype)

    @property
    def n(self) -> int:
        """Number of choices.

        Raises:
            RuntimeError: it is not known yet.
        """
        if self._choices >= 0:
            return self._choices
        if self._provisional_n is None:
            msg = "the number of choices is not known: call set_provisional_n(n) first"
            raise RuntimeError(msg)
        return self._provisional_n

    @property
    def _choices(self) -> int:
        return int(self._space.n)

    def set_provisional_n(self, n: int) -> None:
        """Set for the time being how many choices there are, in place, where n is -1.

        Args:
            n: number of choices, positive.

        Raises:
            ValueError: n is not positive.
        """
        self._provisional_n = checked_count(n)

    def cardinality(self) -> float:
        """Count the choices, masked ones included."""
        return self.n

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """List the choices, the same in every element: `[n, *shape]`."""
        choices = torch.arange(self.n, device=self._device)
        if use_mask and self.mask is not None:
            choices = choices[self._common_row()]
        choices = choices.to(self._dtype).reshape(-1, *(1,) * self.ndim)
        return choices.expand(-1, *self._safe)

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Read the last dimension of a tensor at the chosen positions.

        Args:
            index: a value of the spec `[*index_shape]`.
            tensor_to_index: any dtype `[*rows, n]`; `rows` broadcast against `index_shape`.

        Returns:
            The chosen entries, of the broadcast shape.
        """
        return pick(tensor_to_index, index)

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Write choices as one-hot vectors.

        Args:
            val: a value of the spec `[*shape]`.
            safe: check the domain first; None for what `CHECK_SPEC_ENCODE` says.

        Returns:
            bool `[*shape, n]`.
        """
        self._check(val, safe)
        return hot(self._tensor(val), self.n, torch.bool)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return the value: it is categorical already."""
        self._check(val, safe)
        return val

    def to_one_hot_spec(self) -> OneHot:
        """Write the spec for one-hot data, bool `[*shape, n]`, with the same mask."""
        from rl_specs.leaves.one_hot import OneHot

        return OneHot(self.n, (*self._shape, self.n), self._device, mask=self.mask)

    def to_categorical_spec(self) -> Categorical:
        """Return the spec: it is categorical already."""
        return self

    def _common_row(self) -> Tensor:
        """Give the one row of the mask, where all rows are the same."""
        assert self.mask is not None
        rows = self.mask.reshape(-1, self.mask.shape[-1])
        if not torch.equal(rows, rows[:1].expand_as(rows)):
            msg = "the mask differs between elements, so they have no common list: unbind the spec"
            raise ValueError(msg)
        return rows[0]

    def _identity(self) -> tuple[Any, ...]:
        return (*super()._identity(), self._space)

    def _sample(self, shape: torch.Size) -> Tensor:
        if self.mask is None:
            return torch.randint(self.n, shape, dtype=self._dtype, device=self._device)
        if self.mask.shape[-1] != self.n:
            msg = f"the mask has {self.mask.shape[-1]} entries for {self.n} choices: update_mask"
            raise ValueError(msg)
        return choose(self.mask, shape).to(self._dtype)

    def _contains(self, val: Tensor) -> bool:
        top = self._choices - 1 if self._choices >= 0 else torch.inf
        if not (within(val, 0, top) and whole(val)):
            return False
        return self.mask is None or bool(pick(self.mask.to(val.device), val).all())

    def _nearest(self, val: Tensor) -> Tensor:
        if self.mask is not None:
            return nearest_choice(val, self.mask).to(self._dtype)
        top = self.n - 1 if self._choices >= 0 else torch.iinfo(torch.int64).max
        return clip(val, torch.tensor(0), torch.tensor(top), torch.int64).to(self._dtype)

    def _describe(self) -> str:
        return ", ".join(filter(None, [f"n={self._choices}", self._describe_mask()]))


def checked_count(n: Any, dynamic: bool = False) -> int:
    """Check a number of choices.

    Args:
        n: the number.
        dynamic: allow -1.

    Returns:
        The number as an int.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is not positive.

    Example:
        >>> checked_count(torch.tensor(3))
        3
    """
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
    """Check that a dtype can hold every choice.

    Args:
        n: number of choices.
        dtype: the dtype.

    Raises:
        ValueError: it cannot.

    Example:
        >>> check_room(256, torch.uint8)
    """
    largest = limits(dtype)[1]
    if dtype.is_floating_point:  # above it not every whole number is one
        largest = min(largest, int(2 / torch.finfo(dtype).eps))
    if n - 1 > largest:
        msg = f"{dtype} cannot hold {n} choices: its largest value is {largest}. Pass torch.int64."
        raise ValueError(msg)


def hot(index: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Write positions as one-hot vectors.

    Args:
        index: integers `[*shape]`, 0 to n - 1.
        n: length of the vectors.
        dtype: dtype of the result.

    Returns:
        `[*shape, n]`.

    Example:
        >>> hot(torch.tensor(1), 3, torch.int64)
        tensor([0, 1, 0])
    """
    out = torch.zeros((*index.shape, n), dtype=dtype, device=index.device)
    try:
        return out.scatter_(-1, index.long().unsqueeze(-1), 1)
    except RuntimeError:
        msg = f"expected choices from 0 to {n - 1}: got {index}"
        raise ValueError(msg) from None


def pick(tensor: Tensor, index: Tensor) -> Tensor:
    """Read the last dimension of a tensor at one position for each row.

    Args:
        tensor: any dtype `[*rows, n]`.
        index: integers `[*shape]`; the rows broadcast against it.

    Returns:
        The entries, of the broadcast shape.

    Example:
        >>> pick(torch.arange(6).reshape(2, 3), torch.tensor([2, 0]))
        tensor([2, 3])
    """
    try:
        rows = torch.broadcast_shapes(tensor.shape[:-1], index.shape)
        places = index.long().expand(rows).unsqueeze(-1)
        return tensor.expand(*rows, tensor.shape[-1]).gather(-1, places).squeeze(-1)
    except (RuntimeError, IndexError, AttributeError):
        found = [getattr(value, "shape", type(value).__name__) for value in (tensor, index)]
        msg = (
            f"expected entries [*rows, n] and positions 0 to n - 1 that the rows broadcast with: "
            f"got {found[0]} and {found[1]}"
        )
        raise ValueError(msg) from None
