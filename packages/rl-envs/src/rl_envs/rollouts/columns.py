"""The columns of a batch, written in place step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rl_envs.env.spec_leaves import SpecLeaves
from rl_layout import keys
from rl_tensordict import build, build_flat, nest
from rl_tensordict.types import Array, KeyPath

FEW_BYTES = 2**16  # torch copies more in several threads


def as_array(value: Tensor) -> Array:
    """A tensor's memory as a numpy array; bfloat16, which numpy lacks, as opaque items."""
    if value.dtype is not torch.bfloat16:
        return value.numpy()
    return value.view(torch.int16).numpy().view("V2")


def as_tensor(array: Array, dtype: torch.dtype) -> Tensor:
    """A numpy array of `as_array` as a tensor on the same memory."""
    if dtype is not torch.bfloat16:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view("i2")).view(dtype)


def array_reader(dtype: torch.dtype) -> Callable[[Tensor], Array]:
    """`as_array` of tensors of a dtype, without its question."""
    return as_array if dtype is torch.bfloat16 else torch.Tensor.numpy


class Columns:
    """Leaves `[*B, T, ...]` as tensors and as numpy arrays on the same memory."""

    def __init__(self, batch_size: torch.Size, num_steps: int, *, time_first: bool = False) -> None:
        # time_first stores the rows of one step together: faster to write for many rows, slower
        # to read along time
        self.time_first = time_first
        self.batch_size, self.num_steps = batch_size, num_steps
        self.tensors: dict[KeyPath, Tensor] = {}
        self.arrays: dict[KeyPath, Array] = {}
        self.by_time: dict[KeyPath, Array] = {}  # views [T, *B, ...]
        self._forms: dict[KeyPath, tuple[torch.Size, torch.dtype]] = {}  # of one step
        # what `batch` and `first` were asked for last, with sizes and leaves
        self._first: tuple[int, bool, torch.Size, dict[str, Any]] | None = None
        self._arrays_of: tuple[int, dict[KeyPath, Array]] = -1, {}
        # leaves that may come in another dtype, from the next `writer` on
        self.casts: dict[KeyPath, Callable[[Tensor], Tensor]] = {}
        # leaves that may begin a batch in another form than the one before: a cast to that of the
        # column, or None for another column
        self.changes: dict[KeyPath, Callable[[Tensor], Tensor] | None] = {}

    def add_leaves(self, leaves: SpecLeaves) -> None:
        """Add a column of zeros for each leaf of some specs `[*B, ...]`."""
        for key, spec in leaves:
            assert spec.dtype is not None
            self.add(key, spec.shape[len(self.batch_size) :], spec.dtype)

    def add(self, key: KeyPath, shape: torch.Size, dtype: torch.dtype) -> None:
        """Add a column of zeros."""
        rows, time = self.batch_size, len(self.batch_size)
        if self.time_first:
            by_time = torch.zeros((self.num_steps, *rows, *shape), dtype=dtype, device="cpu")
            column = by_time.movedim(0, time)
        else:
            column = torch.zeros((*rows, self.num_steps, *shape), dtype=dtype, device="cpu")
        self.tensors[key], self.arrays[key] = column, as_array(column)
        self._first, self._arrays_of = None, (-1, {})
        self.by_time[key] = np.moveaxis(self.arrays[key], time, 0)
        self._forms[key] = torch.Size((*rows, *shape)), dtype

    def at(self, t: int, names: Iterable[KeyPath]) -> dict[KeyPath, Tensor]:
        """Views `[*B, ...]` of one step, by key."""
        time = len(self.batch_size)
        return {key: self.tensors[key].select(time, t) for key in names}

    def bind(
        self,
        call: Callable[[dict[KeyPath, Tensor]], Mapping[KeyPath, Tensor]],
        read: Sequence[KeyPath],
        written: Sequence[KeyPath],
    ) -> Callable[[int], None]:
        """Return a function that makes a call on the root of a step, and writes its outputs."""
        # bound to the arrays of now: after `grow` it is to be made again
        reads, view = [(key, self.by_time[key]) for key in read], torch.from_numpy
        writers = {key: self.writer(key) for key in written}
        rows = [(key, self.by_time[key], *self._row_form(key)) for key in written]
        read_array = [array_reader(self.tensors[key].dtype) for key in written]

        def act(t: int) -> None:
            values = {}
            for key, column in reads:
                values[key] = view(column[t, ...])  # the ellipsis keeps a number an array
            made = call(values)
            for place, (key, column, shape, dtype) in enumerate(rows):
                row = read_array[place](made[key])
                if row.shape == shape and row.dtype == dtype:
                    column[t] = row
                else:  # cast, or refused; at the first step of a batch there may be a new column
                    writers[key](t, made[key])
                    rows[place] = (key, self.by_time[key], *self._row_form(key))
                    read_array[place] = array_reader(self.tensors[key].dtype)

        return act

    def _row_form(self, key: KeyPath) -> tuple[tuple[int, ...], Any]:
        """Shape and dtype of one step of a leaf, as an array."""
        return self.by_time[key].shape[1:], self.by_time[key].dtype

    def writer(self, key: KeyPath) -> Callable[[int, Tensor], None]:
        """Return a function that writes one leaf at a step, of the column's shape and dtype."""
        # bound to the array of now: after `grow` it is to be made again
        by_time, cast = self.by_time[key], self.casts.get(key)
        shape, dtype = self._row_form(key)

        def write(t: int, value: Tensor) -> None:
            nonlocal by_time, cast, shape, dtype
            row = as_array(value)
            if row.shape != shape or (row.dtype != dtype and cast is None):
                self._change(t, key, value)
                by_time, cast = self.by_time[key], self.casts.get(key)
                shape, dtype = self._row_form(key)
            if row.dtype != dtype and cast is not None:
                row = as_array(cast(value))
            by_time[t] = row

        return write

    def write(self, t: int, key: KeyPath, value: Tensor) -> None:
        """Write one leaf of one step."""
        self.writer(key)(t, value)

    def _change(self, t: int, key: KeyPath, value: Tensor) -> None:
        """Take a value of another form to begin a batch with; raise at a later step."""
        rows = len(self.batch_size)
        if t == 0 and key in self.changes and value.shape[:rows] == self.batch_size:
            cast = self.changes[key]
            if cast is None:
                self.add(key, value.shape[rows:], value.dtype)
                return
            if value.shape == self._forms[key][0]:
                self.casts[key] = cast
                return
        found, expected = (
            f"{tuple(shape)} {dtype}"
            for shape, dtype in ((value.shape, value.dtype), self._forms[key])
        )
        msg = (
            f"{keys.as_key(key)!r}: expected {expected} as in the steps before, got {found}. Let "
            "the policy write the same at each step of a batch."
        )
        raise ValueError(msg)

    def fits(self, key: KeyPath, value: Tensor) -> bool:
        """Whether a value `[*B, ...]` has the shape and dtype of its column."""
        return (value.shape, value.dtype) == self._forms[key]

    def add_outputs(self, made: Mapping[KeyPath, Tensor], *, may_change: bool) -> None:
        """Add a column for each output `[*B, ...]` of a policy; raise for one that does not fit."""
        rows = len(self.batch_size)
        for key, value in made.items():
            if value.shape[:rows] != self.batch_size:
                msg = (
                    f"the policy's {keys.as_key(key)!r} must begin with the batch size "
                    f"{tuple(self.batch_size)}: got {tuple(value.shape)}."
                )
                raise ValueError(msg)
            if key not in self.tensors:
                self.add(key, value.shape[rows:], value.dtype)
                if may_change:
                    self.changes[key] = None
            elif not self.fits(key, value):
                msg = (
                    f"the policy's {keys.as_key(key)!r} overwrites an entry of the environment "
                    f"with another shape or dtype: got {tuple(value.shape)}, {value.dtype}."
                )
                raise ValueError(msg)

    def grow(self, num_steps: int) -> None:
        """Enlarge every column to `num_steps`, keeping the steps that are written."""
        time, self.num_steps = len(self.batch_size), num_steps
        for key, column in list(self.tensors.items()):
            self.add(key, column.shape[time + 1 :], column.dtype)
            longer = self.tensors[key]
            longer.narrow(time, 0, column.shape[time]).copy_(column)

    def step(self, t: int) -> TensorDict:
        """Copy one step into a tensordict `[*B]`."""
        leaves = {key: leaf.clone() for key, leaf in self.at(t, self.tensors).items()}
        return build(nest(leaves), self.batch_size)

    def first(self, num_steps: int) -> dict[KeyPath, Array]:
        """Views `[*B, T, ...]` of the first steps, by key; not to be changed."""
        if self._arrays_of[0] != num_steps:
            here = (*[slice(None)] * len(self.batch_size), slice(num_steps))
            self._arrays_of = num_steps, {key: one[here] for key, one in self.arrays.items()}
        return self._arrays_of[1]

    def batch(self, num_steps: int, *, copy: bool) -> TensorDict:
        """Return the first steps as a batch `[*B, T]`, its last dimension named `"time"`."""
        time = len(self.batch_size)
        if self._first is None or self._first[:2] != (num_steps, copy):
            cut: dict[KeyPath, Any] = {
                key: col.narrow(time, 0, num_steps) for key, col in self.tensors.items()
            }
            if copy:  # numpy copies a few numbers at half the cost
                few = ((key, one) for key, one in cut.items() if one.nbytes <= FEW_BYTES)
                cut |= {key: one.numpy() for key, one in few if one.dtype is not torch.bfloat16}
            sizes = torch.Size((*self.batch_size, num_steps))
            self._first = num_steps, copy, sizes, nest(cut)
        return branch(self._first[3], self._first[2], copy, [*[None] * time, keys.TIME])


def branch(
    tree: Mapping[str, Any],
    sizes: torch.Size,
    copy: bool,
    names: list[str | None] | None = None,
) -> TensorDict:
    """Make a tensordict of nested leaves, or of copies of them."""
    view, kind = torch.from_numpy, np.ndarray
    entries = {
        name: view(one.copy()) if type(one) is kind else _entry(one, sizes, copy)
        for name, one in tree.items()
    }
    return build_flat(entries, sizes, names)


def _entry(one: Any, sizes: torch.Size, copy: bool) -> Any:
    """A leaf that is a tensor, or a group."""
    if isinstance(one, Tensor):
        return one.clone() if copy else one
    return branch(one, sizes, copy)
