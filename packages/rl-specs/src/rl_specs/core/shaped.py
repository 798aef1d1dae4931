"""What has a shape and can be viewed like a tensor: every operation in terms of one hook."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from rl_specs.core.sizes import TensorView, as_size, stand_in_size

TORCH_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}


class Shaped:
    """Shape operations that a spec shares with tensors.

    A subclass gives `shape` and `_carry`. Where its last dimension holds the domain (the entries
    of a one-hot vector, the columns of a multi-categorical), `domain_dims` is 1: operations act
    on the dimensions before it, and it stays as it is.
    """

    domain_dims: ClassVar[int] = 0

    @property
    def shape(self) -> torch.Size:
        """Sizes of the data, -1 where a dimension is dynamic."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def ndimension(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def _carry(self, view: TensorView, ndim: int) -> Self:
        """Apply a shape operation to the first `ndim` dimensions of all that is held."""
        raise NotImplementedError

    def _make_dynamic(self, dim: int) -> None:
        """Make one dimension dynamic, in place."""
        raise NotImplementedError

    def expand(self, *shape: Any) -> Self:
        """Repeat along new leading dimensions and along dimensions of size 1.

        Args:
            *shape: the new sizes, or one sequence of them; -1 keeps an existing size, and makes
                a new leading dimension dynamic.

        Returns:
            A new spec. Bounds and masks are expanded too.

        Raises:
            ValueError: the sizes do not fit, or would change the domain dimension.
        """
        # sizes without the domain dimension, which no operation sees
        lead = self._lead(as_size(*shape), "expand")
        new = len(lead) - (self.ndim - self.domain_dims)
        # a new leading -1 is dynamic: made with size 1 first, which any size may replace
        sizes = [1 if dim < new and size < 0 else size for dim, size in enumerate(lead)]
        out = self._apply(lambda value: value.expand(sizes), f"be expanded to {tuple(lead)}")
        for dim in range(new):
            if lead[dim] < 0:
                out._make_dynamic(dim)
        return out

    def reshape(self, *shape: Any) -> Self:
        """Reshape, as `torch.reshape`.

        Args:
            *shape: the new sizes, or one sequence of them; one may be -1.

        Returns:
            A new spec.

        Raises:
            ValueError: the sizes do not fit, or would change the domain dimension.
        """
        sizes = self._lead(as_size(*shape), "reshape")
        return self._apply(lambda value: value.reshape(sizes), f"be reshaped to {tuple(sizes)}")

    def view(self, *shape: Any) -> Self:
        """Reshape: the same as `reshape`."""
        return self.reshape(*shape)

    def squeeze(self, dim: int | None = None) -> Self:
        """Remove dimensions of size 1.

        Args:
            dim: the dimension to remove where its size is 1; None for all of size 1.

        Returns:
            A new spec; `self` if there is nothing to remove.

        Raises:
            ValueError: there is no such dimension, or it holds the domain.
        """
        lead = self.shape[: self.ndim - self.domain_dims]
        if dim is None:
            dims = tuple(i for i, size in enumerate(lead) if size == 1)
        else:
            index = self._dim(dim, self.ndim)
            dims = (index,) if self.shape[index] == 1 else ()
        if any(index >= len(lead) for index in dims):
            self._refuse_domain("squeeze")
        if not dims:
            return self

        def squeezed(value: Tensor) -> Tensor:
            # one by one: a tensordict, which replaces the tensor if dimensions have names, needs it
            for index in reversed(dims):
                value = value.squeeze(index)
            return value

        return self._apply(squeezed, f"squeeze dimensions {dims}")

    def unsqueeze(self, dim: int) -> Self:
        """Insert a dimension of size 1.

        Args:
            dim: where to insert it.

        Returns:
            A new spec.

        Raises:
            ValueError: there is no such place, or it comes after the domain dimension.
        """
        index = added_dim(self, dim, "unsqueeze after")
        return self._apply(lambda value: value.unsqueeze(index), f"be unsqueezed at {dim}")

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Merge a run of dimensions into one.

        Args:
            start_dim: the first dimension to merge.
            end_dim: the last one.

        Returns:
            A new spec.

        Raises:
            ValueError: there are no such dimensions, or the domain dimension is among them.
        """
        if not self.ndim:
            return self.unsqueeze(0)
        start, end = self._free_dim(start_dim, "flatten"), self._free_dim(end_dim, "flatten")
        return self._apply(lambda value: value.flatten(start, end), f"flatten {start} to {end}")

    def unflatten(self, dim: int, sizes: Any) -> Self:
        """Split one dimension into several.

        Args:
            dim: the dimension to split.
            sizes: the sizes it is split into; one may be -1.

        Returns:
            A new spec.

        Raises:
            ValueError: there is no such dimension, it holds the domain, or the sizes do not fit.
        """
        index, parts = self._free_dim(dim, "unflatten"), as_size(sizes)

        def unflattened(value: Tensor) -> Tensor:
            return value.reshape(value.shape[:index] + parts + value.shape[index + 1 :])

        return self._apply(unflattened, f"unflatten to {tuple(parts)}")

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """Take the spec apart along one dimension.

        Args:
            dim: a dimension of known size.

        Returns:
            One spec for each index of that dimension.

        Raises:
            ValueError: there is no such dimension, it is dynamic, or it holds the domain.
        """
        index = self._free_dim(dim, "unbind")
        if self.shape[index] < 0:
            msg = f"cannot unbind dimension {dim} of shape {tuple(self.shape)}: its size is dynamic"
            raise ValueError(msg)
        return tuple(self._selected(index, i) for i in range(self.shape[index]))

    def index_select(self, dim: int, index: Tensor) -> Self:
        """Pick entries of one dimension, as `torch.index_select`.

        Args:
            dim: the dimension.
            index: int64 or int32 `[K]`.

        Returns:
            A new spec, of size K along that dimension.

        Raises:
            IndexError: an entry is out of range.
            ValueError: there is no such dimension, or it holds the domain.
        """
        place = self._free_dim(dim, "index_select")
        rows = index.cpu() if isinstance(index, Tensor) else None
        if rows is None or rows.ndim > 1 or rows.dtype not in (torch.int64, torch.int32):
            msg = f"expected positions as int64 or int32 [K]: got {index!r}"
            raise TypeError(msg)
        size = self.shape[place]
        # stand-ins have another size than a dynamic dimension: only known ones are checked
        if rows.numel() and size >= 0 and not 0 <= int(rows.min()) <= int(rows.max()) < size:
            msg = f"index {rows.tolist()} is out of range for dimension {dim} of size {size}"
            raise IndexError(msg)
        return self._apply(lambda value: value[at(place, rows)], "be selected from")

    def __getitem__(self, index: Any) -> Any:
        try:
            entries = tuple(_entry(e) for e in (index if isinstance(index, tuple) else (index,)))
        except (TypeError, ValueError) as error:
            msg = f"{self._named()} cannot be indexed with {index!r}: {error}"
            raise TypeError(msg) from None
        if any(isinstance(entry, str) for entry in entries):
            msg = f"{type(self).__name__} has no keys: got {index!r}. Index it with integers."
            raise TypeError(msg)
        shape = self.shape[: self.ndim - self.domain_dims]
        _check_dynamic(entries, shape)
        return self._apply(lambda value: value[entries], f"be indexed with {index!r}")

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func not in TORCH_FUNCTIONS:
            return NotImplemented
        return TORCH_FUNCTIONS[func](*args, **(kwargs or {}))

    def _selected(self, dim: int, index: int) -> Self:
        return self._apply(lambda value: value[at(dim, index)], f"select {index} of {dim}")

    def _apply(self, view: TensorView, what: str) -> Self:
        try:
            return self._carry(view, self.ndim - self.domain_dims)
        except NotImplementedError:
            raise
        except (IndexError, RuntimeError, TypeError) as error:
            kinds = {IndexError: IndexError, TypeError: TypeError}
            kind = next((kinds[k] for k in kinds if isinstance(error, k)), ValueError)
            # the caller knows nothing of stand-ins
            why = str(error).replace(str(stand_in_size(self.shape)), "-1")
        raise kind(f"{self._named()} cannot {what}: {why}")

    def _named(self) -> str:
        kept = "; its last dimension holds the domain" if self.domain_dims else ""
        return f"{type(self).__name__} of shape {tuple(self.shape)}{kept}"

    def _lead(self, sizes: torch.Size, what: str) -> torch.Size:
        """Strip the domain dimension off new sizes, which may not change it."""
        if not self.domain_dims:
            return sizes
        if not sizes or sizes[-1] not in (self.shape[-1], -1):
            msg = (
                f"{self._named()}: the last size must stay {self.shape[-1]}, but {what} got "
                f"{tuple(sizes)}"
            )
            raise ValueError(msg)
        return sizes[:-1]

    def _dim(self, dim: int, ndim: int) -> int:
        try:
            dim = operator.index(dim)
        except (TypeError, RuntimeError):
            msg = f"a dimension must be an integer: got {dim!r}"
            raise TypeError(msg) from None
        if not -ndim <= dim < ndim:
            msg = f"dimension {dim} is out of range: {self._named()} takes {-ndim} to {ndim - 1}"
            raise ValueError(msg)
        return dim % ndim

    def _free_dim(self, dim: int, what: str) -> int:
        index = self._dim(dim, self.ndim)
        if index >= self.ndim - self.domain_dims:
            self._refuse_domain(what)
        return index

    def _refuse_domain(self, what: str) -> None:
        msg = f"cannot {what} the last dimension of {type(self).__name__}: it holds the domain"
        raise ValueError(msg)


def holds_domain(spec: Shaped) -> bool:
    """Tell whether the last dimension of a spec holds its domain."""
    return spec.domain_dims > 0


def added_dim(spec: Shaped, dim: int, what: str) -> int:
    """Count a dimension to be added from the front; raise for one after the domain's."""
    index = spec._dim(dim, spec.ndim + 1)
    if index > spec.ndim - spec.domain_dims:
        spec._refuse_domain(what)
    return index


def at(dim: int, index: Any) -> tuple[Any, ...]:
    """Index one dimension, with full slices for those before it."""
    return (*(slice(None),) * dim, index)


def stack(specs: Sequence[Any], dim: int) -> Any:
    """Stack specs as `torch.stack` does, without importing the classes of stacks here."""
    return TORCH_FUNCTIONS[torch.stack](specs, dim)


def _method(name: str) -> Callable[..., Any]:
    def call(spec: Shaped, *args: Any, **kwargs: Any) -> Any:
        return getattr(spec, name)(*args, **kwargs)

    return call


for _name in ("squeeze", "unsqueeze", "flatten", "unflatten", "reshape", "unbind", "index_select"):
    TORCH_FUNCTIONS[getattr(torch, _name)] = _method(_name)


def _entry(entry: Any) -> Any:
    """Write one part of an index as torch understands it, on the CPU."""
    if isinstance(entry, list | tuple | range | np.ndarray):
        values = np.asarray(entry)
        return torch.as_tensor(values.astype(np.int64) if not values.size else values, device="cpu")
    return entry.cpu() if isinstance(entry, Tensor) else entry


def _check_dynamic(entries: tuple[Any, ...], shape: torch.Size) -> None:
    """Raise for a slice of a dimension of unknown size."""
    if -1 not in shape:
        return
    spans = [_span(entry) for entry in entries]
    dim = 0
    for entry, span in zip(entries, spans, strict=True):
        if entry is Ellipsis:
            dim += len(shape) - sum(spans)
        elif isinstance(entry, slice) and entry != slice(None) and shape[dim : dim + 1] == (-1,):
            msg = f"dimension {dim} of {tuple(shape)} is dynamic, it has no {entry}: take all of it"
            raise IndexError(msg)
        dim += span


def _span(entry: Any) -> int:
    """Count the dimensions that one part of an index consumes."""
    if entry is None or entry is Ellipsis or isinstance(entry, bool):
        return 0
    return entry.ndim if isinstance(entry, Tensor) and entry.dtype == torch.bool else 1
