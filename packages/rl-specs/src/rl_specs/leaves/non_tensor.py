"""Python objects: data that is no tensor."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, is_non_tensor, is_tensor_collection
from torch import Tensor

from rl_specs.core.placement import as_device, destination
from rl_specs.core.sizes import TensorView, viewed_shape
from rl_specs.core.tensor_spec import TensorSpec


class NonTensor(TensorSpec):
    """Any Python object, with a shape so that it can travel in a tensordict.

    `rand`, `zero` and `one` all give the example. Nothing can be projected.

    Args:
        shape: sizes of the data, -1 where dynamic.
        device: device of the tensordict entry, or None.
        dtype: kept for equality; None in practice.
        example_data: the object that `rand` gives.
        batched: give a stack with one object for each element, instead of one object for all.
        feature_dims: how many trailing dimensions share one object; the ones before are stacked.

    Raises:
        ValueError: both `batched` and `feature_dims` are given.

    Example:
        >>> NonTensor(example_data="go left").rand().data
        'go left'
        >>> NonTensor((2,), example_data="hi", batched=True).rand().tolist()
        ['hi', 'hi']
    """

    def __init__(
        self,
        shape: Any = (1,),
        device: Any = None,
        dtype: torch.dtype | None = None,
        example_data: Any = None,
        batched: bool | None = None,
        feature_dims: int | None = None,
    ) -> None:
        if batched is not None and feature_dims is not None:
            msg = "pass batched or feature_dims, not both: batched=True means feature_dims=0"
            raise ValueError(msg)
        super().__init__(shape, None, None if device is None else as_device(device), dtype)
        self.example_data = example_data
        self.batched = bool(batched)
        shared = 0 if self.batched else self.ndim
        self.feature_dims = shared if feature_dims is None else feature_dims

    def rand(self, shape: Any = None) -> Any:
        """Give the example, stacked along the dimensions that do not share it."""
        return self._wrapped(self.example_data, self._full(shape))

    def zero(self, shape: Any = None) -> Any:
        """Give the example: the same as `rand`."""
        return self.rand(shape)

    def one(self, shape: Any = None) -> Any:
        """Give the example: the same as `rand`."""
        return self.rand(shape)

    def is_in(self, val: Any) -> bool:
        """Tell whether a value is no tensor, and of the right shape where it has one."""
        if isinstance(val, Tensor):
            return False
        if not is_tensor_collection(val):
            return True
        return is_non_tensor(val) and self._matches(val.shape)

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Wrap an object so that a tensordict can hold it."""
        if is_tensor_collection(val) and is_non_tensor(val):
            return val
        return self._wrapped(val, self._safe, None if ignore_device else self._device)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Unwrap an object, or a nested list of them."""
        if isinstance(val, NonTensorStack):
            return val.tolist()
        return val.data if isinstance(val, NonTensorData) else val

    def type_check(self, value: Any, key: Any = None) -> None:
        """Check nothing: an object has no dtype."""

    def cardinality(self) -> float:
        """Raise: objects cannot be counted."""
        return float(self._cannot("count the members of", "its values are Python objects"))

    def to(self, dest: Any) -> Any:
        """Move the spec. Casting changes nothing."""
        _, device = destination(dest, self._dtype, self._device)
        return self if device == self._device else self._replace(_device=device)

    def clone(self) -> Self:
        """Copy the spec. The example is shared."""
        return self._replace()

    def clear_device_(self) -> Self:
        """Forget the device, in place."""
        self._device = None
        return self

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is type(self)
            and self._shape == other.shape
            and self._device == other._device
            and self._dtype == other.dtype
            # not feature_dims: a spec that was expanded has the members of one made so
            and self.batched == other.batched
            and _same(self.example_data, other.example_data)
        )

    def __repr__(self) -> str:
        return (
            f"NonTensor(shape={tuple(self._shape)}, example_data={self.example_data!r}, "
            f"device={self._device})"
        )

    def _wrapped(self, data: Any, shape: torch.Size, device: Any = None) -> Any:
        """Wrap one object, and stack copies of it along the leading dimensions."""
        split = len(shape) - min(self.feature_dims, self.ndim)
        out = NonTensorData(data, batch_size=shape[split:], device=device or self._device)
        for size in reversed(shape[:split]):
            out = NonTensorStack(*(out.copy() for _ in range(size)), stack_dim=0)
        return out

    def _project(self, val: Any) -> Any:
        return self._cannot("project onto", "no object is nearer than another")

    def _mismatch(self, val: Any) -> str:
        shape = tuple(getattr(val, "shape", ()))
        return f"expected no tensor, of shape {tuple(self._shape)}: got {type(val)} {shape}"

    def _carry(self, view: TensorView, ndim: int) -> Self:
        return self._replace(_shape=viewed_shape(view, self._shape[:ndim]) + self._shape[ndim:])

    def _make_dynamic(self, dim: int) -> None:
        shape = torch.Size((*self._shape[:dim], -1, *self._shape[dim + 1 :]))
        self.__dict__.update(self._replace(_shape=shape).__dict__)


def _same(one: Any, other: Any) -> bool:
    """Whether two objects are equal; arrays and tensors in containers too."""
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other.to(one.device))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if type(one) is type(other) and isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if type(one) is type(other) and isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if any(isinstance(each, np.ndarray | Tensor) for each in (one, other)):
        return False
    equal = one == other
    return equal if isinstance(equal, bool) else bool(np.all(equal))
