"""One of n choices, written as an integer or as a vector with a single one."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from rl_specs.core.placement import as_device, as_dtype
from rl_specs.core.sizes import as_size
from rl_specs.leaves.boxes import CategoricalBox
from rl_specs.leaves.choices import (
    Masked,
    check_room,
    checked_count,
    choose,
    hot,
    largest_choice,
    nearest_choice,
    one_hot_everywhere,
    pick,
)
from rl_specs.leaves.interval import clip, whole, within
from rl_tensordict import UnfitValue


class Categorical(Masked):
    """Integers from 0 to n - 1, drawn with the same chance.

    `zero()` is a member, unless a mask forbids choice 0. `project` finds the nearest allowed one.

    Args:
        n: number of choices; -1 if it is not known yet, see `set_provisional_n`.
        shape: sizes of the data; None for a scalar.
        device: device of the data; None for torch's default.
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
            # bool [n]: the same choices are allowed in every element
            choices = choices[self._common_row()]
        # [n] -> [n, 1, ..., 1] -> [n, *shape]
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
        return OneHot(self.n, (*self._shape, self.n), self._device, mask=self.mask)

    def to_categorical_spec(self) -> Categorical:
        """Return the spec: it is categorical already."""
        return self

    def _common_row(self) -> Tensor:
        """Give the one row of the mask, where all rows are the same."""
        assert self.mask is not None
        # [*shape, n] -> [elements, n]
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
        # -1 choices: not known yet, any natural number is one
        top = self._choices - 1 if self._choices >= 0 else torch.inf
        if not (within(val, 0, top) and whole(val)):
            return False
        return self.mask is None or bool(pick(self.mask.to(val.device), val).all())

    def _nearest(self, val: Tensor) -> Tensor:
        if self.mask is not None:
            return nearest_choice(val, self.mask).to(self._dtype)
        top = self.n - 1 if self._choices >= 0 else torch.iinfo(torch.int64).max
        low, high = (torch.tensor(choice, device=val.device) for choice in (0, top))
        return clip(val, low, high, torch.int64).to(self._dtype)

    def _describe(self) -> str:
        return ", ".join(filter(None, [f"n={self._choices}", self._describe_mask()]))


class OneHot(Masked):
    """Vectors of n entries, one of them 1 and the others 0, drawn with the same chance.

    The last dimension holds the domain: indices and shape operations act on the ones before it.
    `zero()` is never a member, because a vector of zeros chooses nothing. `project` takes the
    largest allowed entry. Numpy values are integers, the positions of the ones.

    Args:
        n: number of choices.
        shape: sizes of the data, the last one n; None for `(n,)`.
        device: device of the data; None for torch's default.
        dtype: dtype of the data.
        use_register: encode any hashable value, numbered in the order they come.
        mask: bool, broadcasts to `shape`, True where a choice is allowed.

    Raises:
        ValueError: the last size is not n, or the mask does not fit.

    Example:
        >>> OneHot(3).encode(1)
        tensor([False,  True, False])
        >>> OneHot(3).project(torch.tensor([0.1, 0.7, 0.2]))
        tensor([False,  True, False])
    """

    domain_dims: ClassVar[int] = 1

    def __init__(
        self,
        n: int,
        shape: Any = None,
        device: Any = None,
        dtype: torch.dtype | str = torch.bool,
        use_register: bool = False,
        mask: Any = None,
    ) -> None:
        self._start((checked_count(n),), shape, device, dtype, use_register)
        self._space = CategoricalBox(self._counts[0])
        self.update_mask(mask)

    def _start(
        self,
        counts: tuple[int, ...],
        shape: Any,
        device: Any,
        dtype: torch.dtype | str,
        use_register: bool,
    ) -> None:
        """Note what one group of entries and several have in common."""
        self._counts = counts
        self.use_register = use_register
        self._registers: list[dict[Hashable, int]] = [{} for _ in counts]
        size = as_size((sum(counts),) if shape is None else shape)
        if not size or size[-1] != sum(counts):
            msg = f"the last size must be the number of entries, {sum(counts)}: got {tuple(size)}"
            raise ValueError(msg)
        super().__init__(size, None, as_device(device), as_dtype(dtype), "discrete")

    @property
    def n(self) -> int:
        """Length of the vectors."""
        return sum(self._counts)

    _choices = n

    def cardinality(self) -> float:
        """Count the choices, masked ones included."""
        return math.prod(self._counts)

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """List the vectors, the same in every row: `[n, *shape]`."""
        return self._vectors(self.to_categorical_spec().enumerate(use_mask))

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Read the last dimension of a tensor at the chosen positions.

        Args:
            index: a value of the spec `[*index_shape, n]`.
            tensor_to_index: any dtype `[*rows, n]`; `rows` broadcast against `index_shape`.

        Returns:
            The chosen entries, of the broadcast shape.
        """
        return pick(tensor_to_index, self.to_categorical(index))

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Write one-hot vectors as positions.

        Args:
            val: a value of the spec `[*rows, n]`.
            safe: check the domain first; None for what `CHECK_SPEC_ENCODE` says.

        Returns:
            int64 `[*rows]`.
        """
        self._check(val, safe)
        return self._places(self._tensor(val))

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return the value: it is one-hot already."""
        self._check(val, safe)
        return val

    def to_categorical_spec(self) -> Categorical:
        """Write the spec for positions, int64 `[*rows]`, with the same mask."""
        return Categorical(self.n, self._shape[:-1], self._device, mask=self.mask)

    def to_one_hot_spec(self) -> OneHot:
        """Return the spec: it is one-hot already."""
        return self

    def _identity(self) -> tuple[Any, ...]:
        return (*super()._identity(), self._counts, self.use_register)

    def _vectors(self, index: Tensor) -> Tensor:
        """Write positions `[*rows]` as vectors `[*rows, n]`."""
        return hot(index, self.n, self._dtype)

    def _places(self, val: Tensor) -> Tensor:
        """Write vectors `[*rows, n]` as positions `[*rows]`."""
        if val.is_complex():
            msg = f"expected zeros and ones: got {val.dtype}. Pass val.real."
            raise TypeError(msg)
        # argmax knows no bool
        return (val.to(torch.uint8) if val.dtype == torch.bool else val).argmax(-1)

    def _sample(self, shape: torch.Size) -> Tensor:
        rows = shape[:-1]
        if self.mask is not None:
            return self._vectors(choose(self.mask, rows))
        return self._vectors(torch.randint(self.n, rows, device=self._device))

    def _contains(self, val: Tensor) -> bool:
        if not self._chooses(val):
            return False
        # a one where the mask forbids it
        return self.mask is None or not bool((val.bool() & ~self.mask.to(val.device)).any())

    def _chooses(self, val: Tensor) -> bool:
        """Tell whether every row chooses one entry, allowed or not."""
        return one_hot_everywhere(val)

    def _nearest(self, val: Tensor) -> Tensor:
        return self._vectors(largest_choice(val, self.mask))

    def _encode(self, val: Any) -> Tensor:
        flags = None if self.use_register else self._array(val)
        if flags is None or flags.dtype != np.bool_ or not flags.ndim:
            return self._from_positions(val)
        # bools are vectors: taken for positions, they would become wrong rows
        out = torch.tensor(flags, device="cpu")
        if not (self._matches(out.shape) and self._chooses(out)):
            msg = (
                f"bools are one-hot vectors of {self!r}: got shape {tuple(out.shape)}, rows with "
                f"{sorted(set(out.sum(-1).reshape(-1).tolist()))} True. Positions are integers."
            )
            raise UnfitValue(msg)
        return out.to(self._dtype)

    def _from_positions(self, val: Any) -> Tensor:
        return self._vectors(self._fitted(self._positions(val), self._shape[:-1]))

    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        """Write a position, or an array of them, as one-hot vectors.

        Args:
            val: integers 0 to n - 1, or with `use_register` any hashable values. A tensor that is
                one-hot already is returned as it is, and arrays of bools are vectors.
            ignore_device: leave the result on the CPU.

        Returns:
            `[*shape]`, in the dtype of the spec.

        Raises:
            ValueError: a position is out of range, bools are not one-hot, or there are more values
                than choices.
        """
        if isinstance(val, Tensor):
            vectors = val.dtype == self._dtype and self._matches(val.shape) and self._chooses(val)
            val = val if vectors else val.detach().cpu().numpy()
        return super().encode(val, ignore_device=ignore_device)

    def _positions(self, val: Any) -> Tensor:
        if self.use_register:
            return self._registered(val, 0)
        index = self._cast(self._array(val), torch.int64)
        self._check_positions(index, torch.tensor(self._counts[0], device="cpu"))
        return index

    def _check_positions(self, index: Tensor, counts: Tensor) -> None:
        if bool(((index < 0) | (index >= counts)).any()):
            msg = f"expected positions from 0 to {(counts - 1).tolist()}: got {index.tolist()}"
            raise UnfitValue(msg)

    def _registered(self, val: Any, group: int) -> Tensor:
        """Number hashable values in the order they come."""
        if isinstance(val, list | np.ndarray) and np.ndim(val):
            return torch.stack([self._registered(item, group) for item in val])
        # kept as plain Python values, which messages and `to_numpy` show
        register, item = self._registers[group], val.item() if isinstance(val, np.generic) else val
        if item not in register and len(register) >= self._counts[group]:
            msg = f"all {len(register)} choices are taken by {list(register)}: got {item!r}"
            raise ValueError(msg)
        return torch.tensor(register.setdefault(item, len(register)), device="cpu")

    def _to_numpy(self, val: Tensor) -> Any:
        index = self.to_categorical(val).numpy()
        return self._unregistered(index, 0) if self.use_register else index

    def _unregistered(self, index: Any, group: int) -> Any:
        names = list(self._registers[group])
        if index.size and index.max() >= len(names):
            msg = f"choice {index.max()} has no value yet: {len(names)} were encoded, {names}"
            raise ValueError(msg)
        # values in order of their numbers, [*rows]
        return np.array([names[i] for i in index.reshape(-1)]).reshape(index.shape)

    def clone(self) -> Any:
        """Copy the spec, with its mask and its registers."""
        out = super().clone()
        out._registers = [dict(register) for register in self._registers]
        return out

    def _describe(self) -> str:
        return ", ".join(filter(None, [f"n={self.n}", self._describe_mask()]))
