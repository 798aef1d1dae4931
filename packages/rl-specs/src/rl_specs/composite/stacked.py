"""Specs that differ, stacked along a dimension without being merged."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from textwrap import indent
from typing import Any, Self

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, is_tensor_collection
from torch import Tensor

from rl_specs.core.shaped import at, stack
from rl_specs.core.sizes import TensorView, as_size
from rl_specs.core.tensor_spec import TensorSpec


class Stack(TensorSpec):
    """Specs of one kind side by side: what `Stacked` and `StackedComposite` share."""

    specs: tuple[Any, ...]  # the specs, in order
    dim: int  # the dimension along which they lie, not negative

    def __init__(self, *specs: TensorSpec, dim: int) -> None:
        if not specs:
            msg = "a stack needs at least one spec: got none"
            raise ValueError(msg)
        if not all(isinstance(spec, TensorSpec) for spec in specs):
            msg = f"a stack holds specs: got {[type(spec).__name__ for spec in specs]}"
            raise TypeError(msg)
        ndim = specs[0].ndim + 1
        if any(spec.ndim + 1 != ndim for spec in specs):
            msg = f"specs of a stack need the same number of dimensions: got {_shapes(specs)}"
            raise ValueError(msg)
        self.specs, self.dim = tuple(specs), self._dim(dim, ndim)
        first = specs[0]
        sizes = [
            # a size that differs between the specs is dynamic
            size if all(spec.shape[i] == size for spec in specs) else -1
            for i, size in enumerate(first.shape)
        ]
        sizes.insert(self.dim, len(specs))
        TensorSpec.__init__(self, sizes, None, first.device, first.dtype, first.domain)

    @property
    def stack_dim(self) -> int:
        """The dimension along which the specs lie."""
        return self.dim

    def _join(self, values: list[Any], dim: int) -> Any:
        """Put the members of the specs together, along a dimension of the data."""
        raise NotImplementedError

    def _of(self, specs: Sequence[TensorSpec], dim: int) -> Self:
        return type(self)(*specs, dim=dim)

    def _restacked(self, specs: Sequence[TensorSpec], dim: int) -> Any:
        """Stack again after a shape operation: specs that became equal become one."""
        alike = len({type(spec) for spec in specs}) == 1
        return stack(specs, dim) if alike else self._of(specs, dim)

    def is_in(self, val: Any) -> bool:
        """Tell whether every part of a value is a member of its spec."""
        parts = self._parts_of(val)
        return parts is not None and all(
            spec.is_in(part) for spec, part in zip(self.specs, parts, strict=True)
        )

    def cast(self, val: Any) -> Any:
        """Write every part in the dtype of its spec."""
        pairs = list(zip(self.specs, self._checked_parts(val), strict=True))
        parts = [spec.cast(part) for spec, part in pairs]
        same = all(new is old for new, (_, old) in zip(parts, pairs, strict=True))
        return val if same else self._rejoined(val, parts)

    def type_check(self, value: Any, key: Any = None) -> None:
        """Check the dtype of every part of a value."""
        for spec, part in zip(self.specs, self._checked_parts(value), strict=True):
            spec.type_check(part, key)

    def enumerate(self, use_mask: bool = False) -> Any:
        """List the domains side by side, if they are equally long."""
        lists = [spec.enumerate(use_mask) for spec in self.specs]
        if len({len(values) for values in lists}) > 1:
            lengths = [len(values) for values in lists]
            msg = f"the stacked domains have {lengths} members: enumerate each of spec.unbind()"
            raise ValueError(msg)
        return self._join(lists, self.dim + 1)

    def cardinality(self) -> float:
        """Raise: the stacked domains differ."""
        return float(self._cannot("count the members of", "count those of spec.unbind()"))

    def index(self, index: Any, tensor_to_index: Any) -> Any:
        """Raise: the stacked domains differ."""
        self._cannot("index with", "index with each of spec.unbind()")

    def to(self, dest: Any) -> Any:
        """Move or cast every spec."""
        specs = [spec.to(dest) for spec in self.specs]
        if all(new is old for new, old in zip(specs, self.specs, strict=True)):
            return self
        return self._of(specs, self.dim)

    def clone(self) -> Self:
        """Copy every spec."""
        return self._of([spec.clone() for spec in self.specs], self.dim)

    def clear_device_(self) -> Self:
        """Forget the device of every spec that can be without one, in place."""
        for spec in self.specs:
            spec.clear_device_()
        self._device = self.specs[0].device
        return self

    def __len__(self) -> int:
        return self._shape[0]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.dim == other.dim and self.specs == other.specs

    def __repr__(self) -> str:
        lines = [repr(spec) for spec in self.specs]
        lines.append(f"dim={self.dim}, shape={tuple(self._shape)}")
        body = indent(",\n".join(lines), "    ")
        return f"{type(self).__name__}(\n{body})"

    def _filled(self, make: Callable[[TensorSpec, torch.Size], Any], shape: Any) -> Any:
        sizes = as_size(shape)
        return self._join([make(spec, sizes) for spec in self.specs], self.dim + len(sizes))

    def _parts_of(self, val: Any) -> Sequence[Any] | None:
        """Take a value apart; None if it has not as many parts as there are specs."""
        if isinstance(val, list | tuple):
            return val if self.dim == 0 and len(val) == len(self.specs) else None
        if not is_tensor_collection(val) and not _is_dense(val):
            return None
        if isinstance(val, Tensor) and val.is_nested:
            place, found = 0 if self.dim == 0 else -1, val.size(0)
        else:
            place = len(val.shape) - self.ndim + self.dim
            found = val.shape[place] if place >= 0 else -1
        if place < 0 or found != len(self.specs):
            return None
        return val.unbind(place)  # type: ignore[no-any-return]

    def _rejoined(self, val: Any, parts: list[Any]) -> Any:
        """Put new parts of a value together as the value has them."""
        nested = isinstance(val, Tensor) and val.is_nested
        place = 0 if nested else len(getattr(val, "shape", self._shape)) - self.ndim + self.dim
        return parts if isinstance(val, list | tuple) else self._join(parts, place)

    def _checked_parts(self, val: Any) -> Sequence[Any]:
        parts = self._parts_of(val)
        if parts is None:
            raise ValueError(self._mismatch(val))
        return parts

    def _mismatch(self, val: Any) -> str:
        parts = self._parts_of(val)
        if parts is None:
            return (
                f"expected {len(self.specs)} parts in dimension {self.dim} of shape "
                f"{tuple(self._shape)}, got {type(val).__name__} of {_shape_of(val)}"
            )
        wrong = ((i, s, p) for i, (s, p) in enumerate(zip(self.specs, parts, strict=True)))
        return next((f"part {i}: {s._mismatch(p)}" for i, s, p in wrong if not s.is_in(p)), "")

    def _project(self, val: Any) -> Any:
        pairs = zip(self.specs, self._checked_parts(val), strict=True)
        return self._rejoined(val, [spec.project(part) for spec, part in pairs])

    def _carry(self, view: TensorView, ndim: int) -> Any:
        if self.dim >= ndim:
            specs = [spec._carry(view, ndim) for spec in self.specs]
            return self._restacked(specs, self.dim + specs[0].ndim - self.specs[0].ndim)
        # where a shape operation takes the dimension of the stack: follow the numbers of the specs
        count = len(self.specs)
        sizes = [16 if size < 0 else size for size in self._shape[:ndim]]
        numbers = [-1 if dim == self.dim else 1 for dim in range(ndim)]
        places = view(torch.arange(count, device="cpu").reshape(numbers).expand(sizes))
        # the dimension of the stack after the operation: along it the numbers change
        varying = [d for d in range(places.ndim) if _varies(places, d)]
        if len(varying) > 1:
            self._cannot("merge the stacked dimension of", "unbind it along that dimension first")

        def stretched(value: Tensor, place: int | None = None) -> Tensor:
            value = value.unsqueeze(self.dim)
            sizes = [count if dim == self.dim else -1 for dim in range(value.ndim)]
            out = view(value.expand(sizes))
            return out if place is None else out[at(varying[0], place)]

        if not varying:
            number = int(places.flatten()[0]) if places.numel() else 0
            return self.specs[number]._carry(stretched, ndim - 1)
        # numbers of the specs in their new order, one for each index of that dimension
        rows = places.movedim(varying[0], 0).reshape(places.shape[varying[0]], -1)[:, 0].tolist()
        specs = [
            self.specs[number]._carry(partial(stretched, place=place), ndim - 1)
            for place, number in enumerate(rows)
        ]
        return self._restacked(specs, varying[0])

    def _make_dynamic(self, dim: int) -> None:
        if dim == self.dim:
            msg = f"dimension {dim} holds {len(self.specs)} stacked specs: it cannot be dynamic"
            raise ValueError(msg)
        specs = [copy(spec) for spec in self.specs]
        for spec in specs:
            spec._make_dynamic(dim - (dim > self.dim))
        Stack.__init__(self, *specs, dim=self.dim)  # what a subclass adds stays


class Stacked(Stack):
    """Leaf specs that differ, stacked along a dimension: `torch.stack` of unequal specs.

    A dimension whose size differs between the specs counts as dynamic. Samples are one tensor
    where their shapes agree, otherwise a nested tensor, which only dimension 0 allows. `zero()`
    is a member where that of every spec is.

    Args:
        *specs: leaf specs with the same number of dimensions.
        dim: the new dimension.

    Raises:
        ValueError: there are no specs, or their numbers of dimensions differ.

    Example:
        >>> from rl_specs import Bounded
        >>> spec = Stacked(Bounded(0, 1, (3,)), Bounded(0, 2, (5,)), dim=0)
        >>> spec.shape, [part.shape for part in spec.rand().unbind()]
        (torch.Size([2, -1]), [torch.Size([3]), torch.Size([5])])
    """

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Write plain values as data.

        Args:
            val: one value for each spec, or an array with them along the stacked dimension. A
                tensor is returned as it is.
            ignore_device: leave the result on the CPU.

        Returns:
            One tensor, nested where shapes differ.
        """
        if isinstance(val, Tensor):
            return val
        values: Any = val
        if isinstance(val, np.ndarray) and val.ndim > self.dim:
            values = list(np.moveaxis(val, self.dim, 0))
        if not isinstance(values, list | tuple):
            msg = f"expected {len(self.specs)} values, one for each spec: got {val!r}"
            raise TypeError(msg)
        if len(values) != len(self.specs):
            msg = f"expected {len(self.specs)} values, one for each spec: got {len(values)}"
            raise ValueError(msg)
        pairs = zip(self.specs, values, strict=True)
        return self._join([s.encode(v, ignore_device=ignore_device) for s, v in pairs], self.dim)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Write data as one array, or as a list of them where shapes differ."""
        pairs = zip(self.specs, self._checked_parts(val), strict=True)
        arrays = [spec.to_numpy(part, safe) for spec, part in pairs]
        if len({np.shape(array) for array in arrays}) > 1:
            return arrays
        return np.stack(arrays, self.dim + len(getattr(val, "shape", self._shape)) - self.ndim)

    def _join(self, values: list[Any], dim: int) -> Any:
        if is_tensor_collection(values[0]):
            return LazyStackedTensorDict.maybe_dense_stack(values, dim)
        if len({value.shape for value in values}) == 1:
            return torch.stack(values, dim)
        if dim:
            msg = (
                f"parts of shapes {_shapes(values)} make one (nested) tensor only along dimension "
                f"0, not {dim}: take each of spec.unbind({self.dim})"
            )
            raise ValueError(msg)
        with warnings.catch_warnings():
            # torch calls its nested tensors a prototype, once for each process
            warnings.simplefilter("ignore", UserWarning)
            return torch.nested.nested_tensor(values)


def _is_dense(val: Any) -> bool:
    # a nested tensor is as good as a list of dense ones
    return isinstance(val, Tensor) and (val.is_nested or val.layout is torch.strided)


def _varies(places: Tensor, dim: int) -> bool:
    return places.numel() > 0 and bool((places != places.narrow(dim, 0, 1)).any())


def _shapes(values: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(value.shape) for value in values]


def _shape_of(val: Any) -> str:
    if isinstance(val, Tensor) and val.is_nested:
        return f"{val.size(0)} parts"
    shape = getattr(val, "shape", None)
    return f"length {len(val)}" if shape is None and hasattr(val, "__len__") else f"shape {shape}"
