"""The parent of all specs: what every description of data can be asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

import torch

from rl_specs.core.shaped import Shaped
from rl_specs.core.sizes import as_size, safe

# read once: a look-up for every encoded value would cost more than most encodings
CHECK_SPEC_ENCODE = os.environ.get("CHECK_SPEC_ENCODE", "0").lower() in ("1", "true", "yes", "on")


class TensorSpec(Shaped):
    """A description of data: shape, dtype, device, and the domain of its values.

    A spec owns no data. It draws random members of its domain, tells members from others, finds
    the nearest member, and translates between tensors and plain Python or numpy values. It can be
    viewed, indexed, stacked and moved like the tensors that it describes.

    Args:
        shape: sizes of the data, batch dimensions included, -1 where a size varies.
        space: the box that its values are in, or None.
        device: device of the data, or None.
        dtype: dtype of the data, or None.
        domain: `"continuous"`, `"discrete"`, or None.

    Example:
        >>> from rl_specs import Bounded
        >>> spec = Bounded(0, 1, shape=(3,))
        >>> isinstance(spec, TensorSpec), spec.is_in(spec.rand())
        (True, True)
    """

    def __init__(
        self,
        shape: Any = (),
        space: Any = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        domain: str | None = None,
    ) -> None:
        self._shape = as_size(shape)
        self._safe = safe(self._shape)
        self._space = space
        self._device = device
        self._dtype = dtype
        self._domain = domain

    @property
    def shape(self) -> torch.Size:
        """Sizes of the data, -1 where a dimension is dynamic."""
        return self._shape

    @property
    def space(self) -> Any:
        """The box that the values are in, or None."""
        return self._space

    @property
    def device(self) -> torch.device | None:
        """Device of the data, or None."""
        return self._device

    @property
    def dtype(self) -> torch.dtype | None:
        """Dtype of the data, or None."""
        return self._dtype

    @property
    def domain(self) -> str | None:
        """`"continuous"`, `"discrete"`, or None."""
        return self._domain

    def rand(self, shape: Any = None) -> Any:
        """Draw random members of the domain, seeded by `torch.manual_seed`.

        Args:
            shape: sizes to put before the spec's own. Dynamic dimensions get size 1.

        Returns:
            Data of shape `[*shape, *spec.shape]`, on the spec's device.
        """
        return self._filled(draw, shape)

    def _filled(self, make: Callable[[TensorSpec, torch.Size], Any], shape: Any) -> Any:
        """Combine the results of the specs that this one holds."""
        raise NotImplementedError

    def _drawn(self, shape: Any = None) -> Any:
        """Draw members in the shape of the spec; see `draw`."""
        return self.rand(shape)

    def sample(self, shape: Any = None) -> Any:
        """Draw random members: the same as `rand`."""
        return self.rand(shape)

    def zero(self, shape: Any = None) -> Any:
        """Make zeros of the right shape, dtype and device.

        Zeros are in the domain where it holds 0; the class says so where it cannot promise that.

        Args:
            shape: sizes to put before the spec's own.

        Returns:
            Data of shape `[*shape, *spec.shape]`.
        """
        return self._filled(lambda spec, sizes: spec.zero(sizes), shape)

    def zeros(self, shape: Any = None) -> Any:
        """Make zeros: the same as `zero`."""
        return self.zero(shape)

    def one(self, shape: Any = None) -> Any:
        """Make ones of the right shape, dtype and device, in the domain or not.

        Args:
            shape: sizes to put before the spec's own.

        Returns:
            Data of shape `[*shape, *spec.shape]`.
        """
        return self._filled(lambda spec, sizes: spec.one(sizes), shape)

    def ones(self, shape: Any = None) -> Any:
        """Make ones: the same as `one`."""
        return self.one(shape)

    def is_in(self, val: Any) -> bool:
        """Tell whether a value could have been drawn here.

        Shape, dtype and domain count; further leading dimensions are allowed, and any device.

        Args:
            val: anything.

        Returns:
            False for whatever does not fit. It never raises.
        """
        raise NotImplementedError

    def contains(self, item: Any) -> bool:
        """Tell whether a value could have been drawn here: the same as `is_in`."""
        return self.is_in(item)

    def assert_is_in(self, value: Any) -> None:
        """Check that a value is in the domain.

        Args:
            value: anything.

        Raises:
            AssertionError: it does not. The message says what is wrong with it.
        """
        if not self.is_in(value):
            msg = f"value is not in {self!r}: {self._mismatch(value)}"
            raise AssertionError(msg)

    def describe_mismatch(self, val: Any) -> str:
        """Say why a value does not belong to the spec.

        Args:
            val: anything.

        Returns:
            A phrase that names the first reason; nothing for a member.

        Example:
            >>> from rl_specs import Unbounded
            >>> Unbounded((2,)).describe_mismatch(torch.zeros(3))
            'expected shape (2,), or more dimensions before it, got (3,). Reshape the value.'
        """
        return "" if self.is_in(val) else self._mismatch(val)

    def project(self, val: Any) -> Any:
        """Find the member of the domain that is nearest to a value.

        Args:
            val: data of the right shape, of any real dtype. It is not changed.

        Returns:
            `val` itself if it is a member, otherwise a new value.

        Raises:
            TypeError: the value is not of the right kind.
            ValueError: its shape does not fit.
        """
        return val if self.is_in(val) else self._project(val)

    def type_check(self, value: Any, key: Any = None) -> None:
        """Check the dtype of a value.

        Args:
            value: a tensor.
            key: what to call it in the message.

        Raises:
            TypeError: its dtype is not that of the spec.
        """
        found = getattr(value, "dtype", None)
        if found != self._dtype:
            named = f" for {key!r}" if key is not None else ""
            msg = f"expected dtype {self._dtype}{named}: got {found}. Encode or cast the value."
            raise TypeError(msg)

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Write a plain value as the data that this spec describes.

        Set the environment variable `CHECK_SPEC_ENCODE=1` to check the domain as well.

        Args:
            val: an array, a list, a number. A tensor is returned as it is. A flat array holds the
                elements in order, and dimensions of size 1 may lack; no other shape is changed.
            ignore_device: leave the result on the CPU.

        Returns:
            Data of the spec's dtype and shape (further leading dimensions are kept).

        Raises:
            ValueError: the value does not fit.
        """
        raise NotImplementedError

    def cast(self, val: Any) -> Any:
        """Write data in the dtype of the spec, where nothing is lost by that.

        Shape and domain are not looked at: `is_in` and `project` do that.

        Args:
            val: data of any real dtype, such as int64 zeros and ones for a spec of bools.

        Returns:
            `val` itself where it has the dtype, otherwise a new value.

        Raises:
            TypeError: the value is not of the right kind.
            ValueError: a number would become another one, or floats would lose digits.

        Example:
            >>> from rl_specs import OneHot
            >>> OneHot(3).cast(torch.tensor([0, 1, 0]))
            tensor([False,  True, False])
        """
        return val

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Write data that this spec describes as plain numpy values: the inverse of `encode`.

        Args:
            val: the data.
            safe: check the domain first; None for what `CHECK_SPEC_ENCODE` says.

        Returns:
            An array, or a dictionary of arrays.

        Raises:
            AssertionError: `safe` is set and the value is not in the domain.
        """
        raise NotImplementedError

    def index(self, index: Any, tensor_to_index: Any) -> Any:
        """Read a tensor at the entries that a value of this spec chooses.

        Args:
            index: a value of the spec.
            tensor_to_index: any dtype, entries in the last dimension.

        Returns:
            The chosen entries.

        Raises:
            NotImplementedError: values of this spec choose nothing.
        """
        self._cannot("index with", "one-hot and categorical specs can choose entries")

    def enumerate(self, use_mask: bool = False) -> Any:
        """List the domain of one element, the same in every batch element.

        Args:
            use_mask: leave out what the mask forbids.

        Returns:
            Data of shape `[number of values, *spec.shape]`.

        Raises:
            NotImplementedError: the domain cannot be listed.
        """
        self._cannot("enumerate", "draw members with rand() instead")

    def cardinality(self) -> float:
        """Count the values that one element can take, masked ones included.

        Raises:
            NotImplementedError: they cannot be counted.
        """
        instead = "only bounded and categorical specs can be counted"
        return float(self._cannot("count the members of", instead))

    def to(self, dest: Any) -> Any:
        """Move or cast the spec.

        Args:
            dest: a device or a dtype; None for no change.

        Returns:
            A new spec; `self` where nothing changes.
        """
        raise NotImplementedError

    def cpu(self) -> Any:
        """Move the spec to the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Any:
        """Move the spec to a CUDA device, the current one where none is named."""
        return self.to("cuda" if device is None else device)

    def clone(self) -> Any:
        """Copy the spec, with all that it holds."""
        raise NotImplementedError

    def make_neg_dim(self, dim: int) -> Self:
        """Make one dimension dynamic, in place.

        Args:
            dim: a dimension that does not hold the domain.

        Returns:
            The spec itself.

        Raises:
            ValueError: there is no such dimension, or bounds or masks vary along it.
        """
        self._make_dynamic(self._free_dim(dim, "make dynamic"))
        return self

    def clear_device_(self) -> Self:
        """Forget the device, in place, where a spec can be without one."""
        return self

    def memoize_encode(self, mode: bool = True) -> None:
        """Do nothing: encoding keeps no cache. For callers that switch one on."""

    def erase_memoize_cache(self) -> None:
        """Do nothing: encoding keeps no cache."""

    def _matches(self, shape: torch.Size) -> bool:
        """Tell whether a value's shape fits, leading dimensions aside."""
        if shape == self._shape:
            return True
        # shapes are compared from the end: -1 fits any size
        extra = len(shape) - len(self._shape)
        return extra >= 0 and all(
            size in (-1, found) for size, found in zip(self._shape, shape[extra:], strict=True)
        )

    def _project(self, val: Any) -> Any:
        raise NotImplementedError

    def _mismatch(self, val: Any) -> str:
        """Say what keeps a value out of the domain."""
        raise NotImplementedError

    def _replace(self, **changes: Any) -> Self:
        """Copy without a constructor: all that changes was checked already."""
        out = object.__new__(type(self))
        out.__dict__.update(self.__dict__)
        out.__dict__.update(changes)
        if "_shape" in changes:
            out._safe = safe(out._shape)
        return out

    def _cannot(self, what: str, instead: str) -> Any:
        msg = f"cannot {what} {type(self).__name__}: {instead}"
        raise NotImplementedError(msg)

    def _full(self, shape: Any) -> torch.Size:
        """Put sizes before the spec's own."""
        if shape is None or (isinstance(shape, tuple) and not shape):
            return self._safe
        sizes = as_size(shape)
        if any(size < 0 for size in sizes):
            msg = f"the sizes of a sample must not be negative: got {tuple(sizes)}"
            raise ValueError(msg)
        return torch.Size((*sizes, *self._safe))


def draw(spec: TensorSpec, sizes: torch.Size) -> Any:
    """Draw members in the shape of the spec, as composites and stacks put them together."""
    return spec._drawn(sizes)


def resized(spec: TensorSpec, shape: torch.Size) -> TensorSpec:
    """Copy a spec with another shape. For specs without bounds or masks, which have one too."""
    return spec._replace(_shape=shape)
