"""A spec of one tensor: everything that does not depend on its domain."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from rl_specs.core import tensor_spec
from rl_specs.core.placement import destination
from rl_specs.core.sizes import TensorView, padded, viewed, viewed_shape, without_repeats
from rl_specs.core.tensor_spec import TensorSpec
from rl_specs.leaves.interval import limits, whole, within
from rl_tensordict import UnfitValue


class Leaf(TensorSpec):
    """A spec of one tensor."""

    # A family gives `_sample`, `_contains` and `_nearest`, and names in `_parts` the tensors it
    # holds (bounds, masks). Each has the shape `[*spec.shape without the domain dimension, *rest]`,
    # so that views, moves, copies and comparisons are written once, here.

    _parts: ClassVar[tuple[str, ...]] = ()
    _device: torch.device
    _dtype: torch.dtype

    def _sample(self, shape: torch.Size) -> Tensor:
        """Draw members, `shape` being the full shape."""
        raise NotImplementedError

    def _contains(self, val: Tensor) -> bool:
        """Tell whether a tensor of the right shape and dtype is in the domain."""
        raise NotImplementedError

    def _nearest(self, val: Tensor) -> Tensor:
        """Find the member nearest to a tensor of the right shape."""
        raise NotImplementedError

    def _describe(self) -> str:
        """Write the domain as arguments of the constructor."""
        return ""

    def _identity(self) -> tuple[Any, ...]:
        """List what two equal specs have in common, `_parts` aside."""
        return (self._shape, self._device, self._dtype, self._domain)

    def rand(self, shape: Any = None) -> Tensor:
        """Draw random members of the domain, seeded by `torch.manual_seed`."""
        return self._sample(self._full(shape))

    def zero(self, shape: Any = None) -> Tensor:
        """Make zeros, which are in the domain only where the class says so."""
        return torch.zeros(self._full(shape), dtype=self._dtype, device=self._device)

    def one(self, shape: Any = None) -> Tensor:
        """Make ones."""
        return torch.ones(self._full(shape), dtype=self._dtype, device=self._device)

    def is_in(self, val: Any) -> bool:
        """Tell whether a value could have been drawn here."""
        return (
            isinstance(val, Tensor)
            and val.dtype == self._dtype
            and _is_plain(val)
            and self._matches(val.shape)
            and self._contains(val)
        )

    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        """Write a plain value as a tensor."""
        out = val if isinstance(val, Tensor) else self._encode(val)
        if not ignore_device and out is not val:
            out = out.to(self._device)
        self._check(out, None)
        return out

    def cast(self, val: Any) -> Tensor:
        """Write a tensor in the dtype of the spec, where no number becomes another one."""
        out: Tensor = _require_plain(val)
        if val.dtype == self._dtype:
            return out
        if not _narrows(val.dtype, self._dtype):
            out = val.to(self._dtype)
            if torch.equal(out.to(val.dtype), val):
                return out
        msg = (
            f"{self._dtype} cannot hold every number of {val.dtype} that came, for {self!r}: got "
            f"{val}. Round or cast it."
        )
        raise ValueError(msg)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Write a tensor as a numpy array."""
        if not isinstance(val, Tensor):
            msg = f"expected a tensor: got {type(val).__name__}. Encode it first."
            raise TypeError(msg)
        self._check(val, safe)
        return self._to_numpy(val.detach().cpu())

    def to(self, dest: Any) -> Any:
        """Move or cast the spec."""
        dtype, device = destination(dest, self._dtype, self._device)
        if (dtype, device) == (self._dtype, self._device):
            return self
        return self._moved(dtype or self._dtype, device or self._device)

    def clone(self) -> Self:
        """Copy the spec, with all that it holds."""
        return self._replace(**{n: without_repeats(p, torch.clone) for n, p in self._held()})

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or self._identity() != other._identity():
            return False
        mine, others = dict(self._held()), dict(other._held())
        return mine.keys() == others.keys() and all(
            torch.equal(part, others[name]) for name, part in mine.items()
        )

    def __repr__(self) -> str:
        facts = [f"shape={tuple(self._shape)}", self._describe(), f"dtype={self._dtype}"]
        return f"{type(self).__name__}({', '.join(filter(None, facts))}, device={self._device})"

    def _tensor(self, val: Any) -> Tensor:
        """Raise for what is no tensor, or ends in another domain dimension."""
        out: Tensor = _require_plain(val)
        dims = self.domain_dims
        # only the domain dimension must agree: batch sizes may be any
        if val.shape[val.ndim - dims :] != self._shape[self.ndim - dims :] or val.ndim < dims:
            raise UnfitValue(self._shape_mismatch(val.shape))
        return out

    def _check(self, val: Any, safe: bool | None) -> None:
        if tensor_spec.CHECK_SPEC_ENCODE if safe is None else safe:
            self.assert_is_in(val)

    def _held(self) -> list[tuple[str, Tensor]]:
        """List the tensors that the spec holds."""
        named = [(name, getattr(self, name)) for name in self._parts]
        return [(name, part) for name, part in named if part is not None]

    def _carry(self, view: TensorView, ndim: int) -> Self:
        lead = self._shape[:ndim]
        shape = viewed_shape(view, lead) + self._shape[ndim:]
        parts = {name: viewed(view, part, lead) for name, part in self._held()}
        return self._replace(_shape=shape, **parts)

    def _make_dynamic(self, dim: int) -> None:
        parts = {}
        for name, part in self._held():
            # bounds of size 1 fit any size, if they are the same all along the dimension
            parts[name] = part.narrow(dim, 0, min(1, part.shape[dim]))
            if not torch.equal(parts[name].expand_as(part), part) or not part.shape[dim]:
                msg = f"cannot make dimension {dim} of {self!r} dynamic: {name} varies along it"
                raise ValueError(msg)
        shape = (*self._shape[:dim], -1, *self._shape[dim + 1 :])
        self.__dict__.update(self._replace(_shape=torch.Size(shape), **parts).__dict__)

    def _moved(self, dtype: torch.dtype, device: torch.device) -> Self:
        held = self._held()
        parts = {n: without_repeats(p, lambda part: part.to(device)) for n, p in held}
        return self._replace(_dtype=dtype, _device=device, **parts)

    def _project(self, val: Any) -> Tensor:
        _require_plain(val)
        if val.is_complex() and not self._dtype.is_complex:
            msg = (
                f"expected real numbers for {self!r}: got {val.dtype}. Pass val.real or val.abs()."
            )
            raise TypeError(msg)
        if not self._matches(val.shape):
            raise UnfitValue(self._shape_mismatch(val.shape))
        return self._nearest(val)

    def _encode(self, val: Any) -> Tensor:
        # a list of one array is what some environments return for an image
        if isinstance(val, list) and len(val) == 1:
            val = val[0]
        # a copy: environments reuse their buffers, and strides may be negative
        array = np.array(self._array(val.detach().cpu() if isinstance(val, Tensor) else val))
        return self._fitted(self._cast(array, self._dtype), self._shape)

    def _array(self, val: Any) -> Any:
        try:
            return np.asarray(val)
        except (ValueError, RuntimeError, TypeError):
            msg = f"expected numbers in rows of one length for {self!r}: got {val!r}"
            raise ValueError(msg) from None

    def _cast(self, array: Any, dtype: torch.dtype) -> Tensor:
        """Cast without losing anything: no fraction is cut off, no integer wraps round."""
        try:
            out = torch.from_numpy(array)
        except TypeError:
            msg = f"expected numbers for {self!r}: got {array!r}"
            raise ValueError(msg) from None
        integer = not (dtype.is_floating_point or dtype.is_complex)
        lossy = out.is_complex() and not dtype.is_complex
        if not lossy and integer and out.dtype != dtype:
            lossy = not (within(out, *limits(dtype)) and whole(out))
        if lossy:
            msg = f"expected values that {dtype} can hold, for {self!r}: got {array!r}. Cast them."
            raise ValueError(msg)
        return out.to(dtype)

    def _fitted(self, out: Tensor, shape: torch.Size) -> Tensor:
        """Give a flat value `shape`, or others by dimensions of size 1, unless they end in it."""
        # further leading dimensions of a batch of values
        extra = out.ndim - len(shape)
        if extra >= 0 and all(s in (-1, o) for s, o in zip(shape, out.shape[extra:], strict=True)):
            return out
        flat = out.ndim == 1 and out.numel() == shape.numel()
        # others of as many elements are in another order: channels last, rows as columns
        sizes = shape if flat else padded(out.shape, shape)
        if sizes is None:
            raise UnfitValue(self._shape_mismatch(out.shape))
        return out.reshape(sizes)

    def _to_numpy(self, val: Tensor) -> Any:
        # numpy has no bfloat16, and every bfloat16 is a float32
        return (val.float() if val.dtype == torch.bfloat16 else val).numpy()

    def _mismatch(self, val: Any) -> str:
        if not isinstance(val, Tensor) or not _is_plain(val):
            return f"expected a plain dense tensor, got {type(val).__name__}"
        if val.dtype != self._dtype:
            return f"expected dtype {self._dtype}, got {val.dtype}. Cast it, or project it"
        if not self._matches(val.shape):
            return self._shape_mismatch(val.shape)
        return f"not every value is in {self!r}: got {val}. project() gives the nearest member."

    def _shape_mismatch(self, shape: torch.Size) -> str:
        return (
            f"expected shape {tuple(self._shape)}, or more dimensions before it, "
            f"got {tuple(shape)}. Reshape the value."
        )


def _narrows(old: torch.dtype, new: torch.dtype) -> bool:
    """Whether a cast goes to fewer digits or to real numbers: refused whatever the values are."""
    if old.is_complex or (old.is_floating_point and new.is_floating_point):
        return torch.promote_types(old, new) != new
    return False


def _require_plain(val: Any) -> Any:
    if not isinstance(val, Tensor) or not _is_plain(val):
        msg = f"expected a plain dense tensor: got {type(val).__name__}. Encode it first."
        raise TypeError(msg)
    return val


def _is_plain(val: Tensor) -> bool:
    return val.layout is torch.strided and not val.is_nested and not val.is_meta
