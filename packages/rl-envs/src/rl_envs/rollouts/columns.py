"""The columns of a batch, written in place step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rl_envs.env.specs import Leaves
from rl_envs.rollouts.arrays import Array
from rl_layout import keys
from rl_tensordict import build, nest

Key = tuple[str, ...]


class Columns:
    """Leaves `[*B, T, ...]` as tensors and as numpy arrays on the same memory.

    Args:
        batch_size: the sizes `[*B]`.
        num_steps: T.
        time_first: let the rows of one step lie together in memory, which is faster to write for
            many rows and slower to read along time.

    Attributes:
        tensors: the leaves by key.
        arrays: the same as arrays.

    Example:
        >>> columns = Columns(torch.Size([2]), 5)
        >>> columns.add(("a",), torch.Size([3]), torch.float32)
        >>> columns.arrays["a",].shape
        (2, 5, 3)
    """

    def __init__(self, batch_size: torch.Size, num_steps: int, *, time_first: bool = False) -> None:
        self.time_first = time_first
        self.batch_size, self.num_steps = batch_size, num_steps
        self.tensors: dict[Key, Tensor] = {}
        self.arrays: dict[Key, Array] = {}
        self._by_time: dict[Key, Array] = {}  # views [T, *B, ...]
        self._forms: dict[Key, tuple[torch.Size, torch.dtype]] = {}  # of one step
        # leaves that may come in another dtype, from the next `writer` on
        self.casts: dict[Key, Callable[[Tensor], Tensor]] = {}

    def add_leaves(self, leaves: Leaves) -> None:
        """Add a column of zeros for each leaf of some specs `[*B, ...]`.

        Args:
            leaves: key and spec of each.
        """
        for key, spec in leaves:
            assert spec.dtype is not None
            self.add(key, spec.shape[len(self.batch_size) :], spec.dtype)

    def add(self, key: Key, shape: torch.Size, dtype: torch.dtype) -> None:
        """Add a column of zeros.

        Args:
            key: of the leaf.
            shape: of one step of one row.
            dtype: of the leaf.
        """
        rows, time = self.batch_size, len(self.batch_size)
        if self.time_first:
            column = torch.zeros((self.num_steps, *rows, *shape), dtype=dtype).movedim(0, time)
        else:
            column = torch.zeros((*rows, self.num_steps, *shape), dtype=dtype)
        self.tensors[key], self.arrays[key] = column, column.numpy()
        self._by_time[key] = np.moveaxis(self.arrays[key], time, 0)
        self._forms[key] = torch.Size((*rows, *shape)), dtype

    def at(self, t: int, names: Iterable[Key]) -> dict[Key, Tensor]:
        """Read one step.

        Args:
            t: which.
            names: keys of the leaves to read.

        Returns:
            Views `[*B, ...]` by key.
        """
        time = len(self.batch_size)
        return {key: self.tensors[key].select(time, t) for key in names}

    def reader(self, key: Key) -> Callable[[int], Tensor]:
        """Make what reads one leaf, for loops that do so at every step.

        Args:
            key: of the leaf, which has a column.

        Returns:
            A function of a step, that returns a view `[*B, ...]`. It knows nothing of a column
            that has grown.
        """
        by_time, view = self._by_time[key], torch.from_numpy
        return lambda t: view(by_time[t, ...])  # the ellipsis keeps a number an array

    def writer(self, key: Key) -> Callable[[int, Tensor], None]:
        """Make what writes one leaf, for loops that do so at every step.

        Args:
            key: of the leaf, which has a column.

        Returns:
            A function of a step and a value `[*B, ...]`, which raises ValueError where the value
            has another shape or dtype than the column. It knows nothing of a column that has
            grown.
        """
        by_time, cast = self._by_time[key], self.casts.get(key)
        shape, dtype = by_time.shape[1:], by_time.dtype

        def write(t: int, value: Tensor) -> None:
            row = value.numpy()
            if row.shape != shape or (row.dtype != dtype and cast is None):
                self._refuse(key, value)
            if row.dtype != dtype and cast is not None:
                row = cast(value).numpy()
            by_time[t] = row

        return write

    def write(self, t: int, key: Key, value: Tensor) -> None:
        """Write one leaf of one step.

        Args:
            t: which.
            key: of the leaf, which has a column.
            value: `[*B, ...]`.

        Raises:
            ValueError: the value has another shape or dtype than the column.
        """
        self.writer(key)(t, value)

    def _refuse(self, key: Key, value: Tensor) -> None:
        found, expected = (
            f"{tuple(shape)} {dtype}"
            for shape, dtype in ((value.shape, value.dtype), self._forms[key])
        )
        msg = f"{keys.as_key(key)!r}: expected {expected} as in the steps before, got {found}."
        raise ValueError(msg)

    def fits(self, key: Key, value: Tensor) -> bool:
        """Tell whether a value could be written to a column.

        Args:
            key: of the leaf, which has a column.
            value: `[*B, ...]`.

        Returns:
            Whether shape and dtype are those of the column.
        """
        return (value.shape, value.dtype) == self._forms[key]

    def grow(self, num_steps: int) -> None:
        """Make room for more steps, keeping those written.

        Args:
            num_steps: the new T.
        """
        time, self.num_steps = len(self.batch_size), num_steps
        for key, column in list(self.tensors.items()):
            self.add(key, column.shape[time + 1 :], column.dtype)
            longer = self.tensors[key]
            longer.narrow(time, 0, column.shape[time]).copy_(column)

    def step(self, t: int) -> TensorDict:
        """Hand out one step.

        Args:
            t: which.

        Returns:
            Copies of the leaves, `[*B]`.
        """
        leaves = {key: leaf.clone() for key, leaf in self.at(t, self.tensors).items()}
        return build(nest(leaves), self.batch_size)

    def batch(self, num_steps: int, *, copy: bool = True) -> TensorDict:
        """Hand out the first steps.

        Args:
            num_steps: how many.
            copy: leave the room behind them, where there is some, out of the memory.

        Returns:
            The leaves as a batch `[*B, T]`, its last dimension named `"time"`.
        """
        time = len(self.batch_size)
        leaves = self.tensors
        if num_steps < self.num_steps:
            leaves = {key: col.narrow(time, 0, num_steps) for key, col in leaves.items()}
            leaves = {key: col.clone() for key, col in leaves.items()} if copy else leaves
        sizes = torch.Size((*self.batch_size, num_steps))
        return build(nest(leaves), sizes, [*[None] * time, keys.TIME])
