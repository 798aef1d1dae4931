"""Several choices at once: one column each, as integers or as one-hot vectors side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rl_specs.core.placement import as_device, as_dtype
from rl_specs.core.shaped import stack
from rl_specs.core.sizes import as_size, safe
from rl_specs.leaves.boxes import BoxList
from rl_specs.leaves.categorical import Categorical, OneHot
from rl_specs.leaves.choices import (
    check_room,
    checked_count,
    choose,
    hot,
    largest_choice,
    nearest_choice,
    one_hot_everywhere,
    pick,
)
from rl_specs.leaves.interval import clip, whole


class MultiCategorical(Categorical):
    """Columns of integers, column k from 0 to nvec[k] - 1, drawn with the same chance.

    The last dimension holds the columns: indices and shape operations act on the ones before it.
    `zero()` is a member, unless a mask forbids choice 0 of a column. `project` finds the nearest
    allowed choices.

    Args:
        nvec: number of choices of each column `[K]`, or of each column of each row `[*rows, K]`.
        shape: sizes of the data, the last one K; None for the shape of `nvec`.
        device: device of the data; None for torch's default.
        dtype: dtype of the data.
        mask: bool, broadcasts to `[*rows, sum(nvec)]`: the columns' masks side by side.
        remove_singleton: where the whole shape is `(1,)`, let `rand` return scalars. Every
            method takes both forms; in a composite or a stack, data have the shape of the spec.

    Raises:
        ValueError: the last size is not K, or a mask does not fit or meets rows that differ.

    Example:
        >>> MultiCategorical([2, 3]).cardinality()
        6
    """

    domain_dims: ClassVar[int] = 1
    _parts: ClassVar[tuple[str, ...]] = ("nvec", "mask")
    nvec: Tensor

    def __init__(
        self,
        nvec: Sequence[int] | Tensor | int,
        shape: Any = None,
        device: Any = None,
        dtype: torch.dtype | str = torch.int64,
        mask: Any = None,
        remove_singleton: bool = True,
    ) -> None:
        try:
            given = nvec if isinstance(nvec, Tensor) else torch.as_tensor(nvec, device="cpu")
            counts = torch.atleast_1d(given)
        except (TypeError, ValueError, RuntimeError):
            msg = f"nvec must be numbers of choices, one for each column: got {nvec!r}"
            raise TypeError(msg) from None
        for count in counts.flatten().tolist():
            check_room(checked_count(count), as_dtype(dtype))
        size = counts.shape if shape is None else as_size(shape)
        if not size or size[-1] != counts.shape[-1]:
            msg = f"the last size must be the number of columns, {counts.shape[-1]}: got {size}"
            raise ValueError(msg)
        # past the leaf that knows one number of choices
        super(Categorical, self).__init__(
            size, None, as_device(device), as_dtype(dtype), "discrete"
        )
        self.remove_singleton = remove_singleton
        self.nvec = _rows(counts, size).to(self._device)
        self.update_mask(mask)

    @property
    def n(self) -> int:
        """Number of choices of all columns together, if they are the same in every row."""
        return sum(self._columns)

    _choices = n

    @property
    def space(self) -> BoxList:
        """One box for each column."""
        columns = self._common_columns
        return BoxList.from_nvec(
            self.nvec if columns is None else torch.tensor(columns, device="cpu")
        )

    @property
    def _common_columns(self) -> tuple[int, ...] | None:
        # [*rows, K] -> [R, K]; without rows a column has one choice, so that products are 1
        rows = self.nvec.reshape(-1, self.nvec.shape[-1])
        if len(rows) and not torch.equal(rows, rows[:1].expand_as(rows)):
            return None
        return tuple(rows[0].tolist()) if len(rows) else (1,) * self.nvec.shape[-1]

    @property
    def _columns(self) -> tuple[int, ...]:
        columns = self._common_columns
        if columns is None:
            msg = "the rows of nvec differ, so they have no common columns: unbind the spec first"
            raise ValueError(msg)
        return columns

    def _check_room(self, dtype: torch.dtype) -> None:
        for count in self.nvec.unique().tolist():
            check_room(count, dtype)

    def set_provisional_n(self, n: int) -> None:
        """Raise: the numbers of choices are all known."""
        self._cannot("set the number of choices of", "its nvec is known")

    def rand(self, shape: Any = None) -> Tensor:
        """Draw random members, scalars where `remove_singleton` says so."""
        out = self._drawn(shape)
        return out.squeeze(-1) if self._scalar else out

    def _drawn(self, shape: Any = None) -> Tensor:
        return super().rand(shape)

    def is_in(self, val: Any) -> bool:
        """Tell whether a value could have been drawn here."""
        return super().is_in(self._columned(val))

    def cardinality(self) -> float:
        """Count the combinations, masked ones included."""
        return math.prod(self._columns)

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """List the combinations, the same in every row: `[number, *shape]`."""
        columns = [torch.arange(n, device=self._device) for n in self._columns]
        if use_mask and self.mask is not None:
            allowed = self._common_row().split(self._columns)
            columns = [column[mask] for column, mask in zip(columns, allowed, strict=True)]
        # [number, K]
        rows = torch.stack([c.flatten() for c in torch.meshgrid(*columns, indexing="ij")], -1)
        # [number, K] -> [number, 1, ..., 1, K] -> [number, *shape]
        rows = rows.to(self._dtype).reshape(-1, *(1,) * (self.ndim - 1), len(columns))
        return rows.expand(-1, *self._safe)

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Read the columns' parts of a tensor at the chosen positions.

        Args:
            index: a value of the spec `[*index_shape, K]`.
            tensor_to_index: any dtype `[*rows, sum(nvec)]`.

        Returns:
            The chosen entries, one for each column.
        """
        parts = split_columns(tensor_to_index, self._columns)
        places = self._tensor(self._columned(index)).unbind(-1)
        picked = [pick(part, place) for part, place in zip(parts, places, strict=True)]
        return torch.stack(picked, -1)

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Write choices as one-hot vectors side by side, bool `[*rows, sum(nvec)]`."""
        self._check(val, safe)
        columns = zip(self._tensor(self._columned(val)).unbind(-1), self._columns, strict=True)
        return torch.cat([hot(place, n, torch.bool) for place, n in columns], -1)

    def to_one_hot_spec(self) -> Any:
        """Write the spec for one-hot data, with the same mask.

        Returns:
            A `MultiOneHot`; a stack of them where the rows of `nvec` differ.
        """
        if self._common_columns is None:
            return stack([row.to_one_hot_spec() for row in self.unbind(0)], 0)
        shape = (*self._shape[:-1], self.n)
        return MultiOneHot(self._columns, shape, self._device, mask=self.mask)

    @property
    def _scalar(self) -> bool:
        return self.remove_singleton and self._shape == (1,)

    def _columned(self, val: Any) -> Any:
        """Add the column dimension to scalars of one column that their last size identifies."""
        dense = isinstance(val, Tensor) and not val.is_nested
        # a last size of 1 is the column dimension already
        return val.unsqueeze(-1) if self._scalar and dense and val.shape[-1:] != (1,) else val

    def _project(self, val: Any) -> Tensor:
        columned = self._columned(val)
        found = super()._project(columned)
        return found if columned is val else found.squeeze(-1)

    def _sample(self, shape: torch.Size) -> Tensor:
        if self.mask is not None:
            # columns are drawn one by one, as each has its own mask
            masks = self.mask.split(self._columns, -1)
            return torch.stack([choose(mask, shape[:-1]) for mask in masks], -1).to(self._dtype)
        # of 53 random bits: enough for any number of choices that can be listed
        lots = torch.rand(shape, dtype=torch.float64, device=self._device)
        return (lots * self.nvec).long().to(self._dtype)

    def _contains(self, val: Tensor) -> bool:
        if not (bool(((val >= 0) & (val < self.nvec.to(val.device))).all()) and whole(val)):
            return False
        if self.mask is None:
            return True
        # masks of all columns side by side, bool [*rows, n_k] each
        allowed = self.mask.to(val.device).split(self._columns, -1)
        return all(
            bool(pick(mask, place).all())
            for mask, place in zip(allowed, val.unbind(-1), strict=True)
        )

    def _nearest(self, val: Tensor) -> Tensor:
        if self.mask is None:
            first = torch.tensor(0, device=val.device)
            return clip(val, first, self.nvec - 1, torch.int64).to(self._dtype)
        columns = zip(val.unbind(-1), self.mask.split(self._columns, -1), strict=True)
        return torch.stack([nearest_choice(*column) for column in columns], -1).to(self._dtype)

    def _describe(self) -> str:
        columns = self._common_columns
        counts = self.nvec.tolist() if columns is None else list(columns)
        return ", ".join(filter(None, [f"nvec={counts}", self._describe_mask()]))


class MultiOneHot(OneHot):
    """One-hot vectors side by side, group k of nvec[k] entries, each with a single one.

    The last dimension holds the groups: indices and shape operations act on the ones before it.
    `zero()` is never a member. `project` takes the largest allowed entry of each group. Numpy
    values are integers `[*rows, K]`.

    Args:
        nvec: number of entries of each group.
        shape: sizes of the data, the last one `sum(nvec)`; None for that alone.
        device: device of the data; None for torch's default.
        dtype: dtype of the data.
        use_register: encode any hashable values, numbered for each group in the order they come.
        mask: bool, broadcasts to `shape`, True where an entry is allowed.

    Raises:
        ValueError: the last size is not `sum(nvec)`, or the mask does not fit.

    Example:
        >>> MultiOneHot([2, 3]).encode([1, 0])
        tensor([False,  True,  True, False, False])
    """

    def __init__(
        self,
        nvec: Sequence[int],
        shape: Any = None,
        device: Any = None,
        dtype: torch.dtype | str = torch.bool,
        use_register: bool = False,
        mask: Any = None,
    ) -> None:
        try:
            counts = tuple(checked_count(n) for n in nvec)
        except (TypeError, RuntimeError):
            msg = f"nvec must be numbers of choices, one for each group: got {nvec!r}"
            raise TypeError(msg) from None
        self._start(counts, shape, device, dtype, use_register)
        self._space = BoxList.from_nvec(torch.tensor(counts, device="cpu"))
        self.update_mask(mask)

    @property
    def nvec(self) -> tuple[int, ...]:
        """Number of entries of each group."""
        return self._counts

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Read the groups' parts of a tensor at the chosen positions.

        Args:
            index: a value of the spec `[*index_shape, sum(nvec)]`.
            tensor_to_index: any dtype `[*rows, sum(nvec)]`.

        Returns:
            The chosen entries, one for each group.
        """
        return self.to_categorical_spec().index(self.to_categorical(index), tensor_to_index)

    def to_categorical_spec(self) -> MultiCategorical:
        """Write the spec for positions, int64 `[*rows, K]`, with the same mask."""
        shape = (*self._shape[:-1], len(self._counts))
        return MultiCategorical(self._counts, shape, self._device, mask=self.mask)

    def _vectors(self, index: Tensor) -> Tensor:
        groups = zip(index.unbind(-1), self._counts, strict=True)
        return torch.cat([hot(place, n, self._dtype) for place, n in groups], -1)

    def _places(self, val: Tensor) -> Tensor:
        groups = val.split(self._counts, -1)
        return torch.stack([super(MultiOneHot, self)._places(group) for group in groups], -1)

    def _groups(self, value: Tensor | None) -> Sequence[Any]:
        # one part [*rows, n_k] for each group
        return [None] * len(self._counts) if value is None else value.split(self._counts, -1)

    def _sample(self, shape: torch.Size) -> Tensor:
        rows = shape[:-1]
        if self.mask is not None:
            places = [choose(mask, rows) for mask in self._groups(self.mask)]
        else:
            places = [torch.randint(n, rows, device=self._device) for n in self._counts]
        return self._vectors(torch.stack(places, -1))

    def _chooses(self, val: Tensor) -> bool:
        return all(one_hot_everywhere(group) for group in self._groups(val))

    def _nearest(self, val: Tensor) -> Tensor:
        groups = zip(self._groups(val), self._groups(self.mask), strict=True)
        return self._vectors(torch.stack([largest_choice(*group) for group in groups], -1))

    def _from_positions(self, val: Any) -> Tensor:
        shape = torch.Size((*self._shape[:-1], len(self._counts)))
        return self._vectors(self._fitted(self._positions(val), shape))

    def _positions(self, val: Any) -> Tensor:
        if self.use_register:
            # objects [*rows, K]: each group numbers the values of its own column
            columns = np.moveaxis(np.asarray(val, dtype=object), -1, 0)
            places = [self._registered(column, k) for k, column in enumerate(columns)]
            return torch.stack(places, -1)
        index = self._cast(self._array(val), torch.int64)
        if not index.ndim or index.shape[-1] != len(self._counts):
            msg = f"expected {len(self._counts)} positions in the last dimension: got {val}"
            raise ValueError(msg)
        self._check_positions(index, torch.tensor(self._counts, device="cpu"))
        return index

    def _to_numpy(self, val: Tensor) -> Any:
        index = self.to_categorical(val, safe=False).numpy()
        if not self.use_register:
            return index
        columns = np.moveaxis(index, -1, 0)
        return np.stack([self._unregistered(c, k) for k, c in enumerate(columns)], -1)

    def _describe(self) -> str:
        return ", ".join(filter(None, [f"nvec={list(self._counts)}", self._describe_mask()]))


def split_columns(tensor: Any, columns: Sequence[int]) -> Sequence[Tensor]:
    """Cut entries `[*rows, sum(nvec)]` into those of each column."""
    if not isinstance(tensor, Tensor) or tensor.shape[-1:] != (sum(columns),):
        found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        msg = f"expected a tensor with {sum(columns)} entries in its last dimension: got {found}"
        raise ValueError(msg)
    parts: Sequence[Tensor] = tensor.split(tuple(columns), -1)
    return parts


def _rows(counts: Tensor, size: torch.Size) -> Tensor:
    """Give every row its numbers of choices, `[*safe(size)]`."""
    try:
        # a dynamic size counts as 1 here: nvec cannot vary along it
        return counts.clone().expand(safe(size))
    except RuntimeError:
        msg = f"nvec of shape {tuple(counts.shape)} does not fit the shape {tuple(size)}"
        raise ValueError(msg) from None
