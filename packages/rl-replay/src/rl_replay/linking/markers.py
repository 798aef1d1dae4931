"""What the markers of some rows say, as plain numpy columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_layout.internals import cut_between
from rl_replay.linking.marker_keys import MarkerKeys
from rl_tensordict import NestedKey

RowSelection = slice | NDArray[np.int64]
_BOOL = np.dtype(np.bool_)
Get = Callable[[NestedKey], NDArray[Any] | None]


@dataclass(slots=True)  # not frozen, which takes four times as long to make
class MarkerColumns:
    """The markers of n rows as read-only numpy columns; None for an absent marker."""

    count: int  # How many rows
    ids: tuple[NDArray[Any], ...]  # Columns of ids, each [n]
    step: NDArray[Any] | None  # int64 [n]
    init: NDArray[np.bool_] | None  # bool [n], first steps
    # Flags of last steps, bool [n] each; on n-step rows only one step away from the end
    ends: tuple[NDArray[np.bool_], ...]
    real: NDArray[np.bool_] | None  # bool [n]

    @classmethod
    def of(cls, cells: TensorDictBase, keys: MarkerKeys) -> Self:
        """The markers of rows `[n]`; absent columns are skipped."""
        return cls.read(lambda key: as_numpy(cells.get(key, None)), keys, len(cells))

    @classmethod
    def read(cls, get: Get, keys: MarkerKeys, count: int) -> Self:
        """The markers of `count` rows; `get` returns the columns `[count, ...]` by key."""
        ids = [column for key in keys.ids if (column := get(key)) is not None]
        step = None if keys.step is None else get(keys.step)
        return cls(
            count=count,
            ids=tuple(_single(column, count) for column in ids),
            step=None if step is None else _single(step, count),
            init=_flags(get, keys.init, count),
            ends=_ends(get, keys, count),
            real=_flags(get, keys.mask, count),
        )

    def joined(self, earlier: RowSelection, later: RowSelection) -> NDArray[np.bool_]:
        """For pairs of rows, whether no marker cuts between them, bool `[pairs]`."""
        rows = range(self.count)[earlier] if isinstance(earlier, slice) else earlier
        cut: NDArray[np.bool_] = np.zeros(len(rows), dtype=np.bool_)
        ids, step, pairs = self.ids, self.step, (earlier, later)
        cut_between(cut, pairs, alike=ids, step=step, is_init=self.init, ends=self.ends)
        joined = np.logical_not(cut, out=cut)
        if self.real is not None:
            joined &= self.real[earlier] & self.real[later]
        return joined

    def name(self, row: int) -> tuple[tuple[int, ...], int | None]:
        """The ids of a row, and its step or None."""
        step = None if self.step is None else int(self.step[row])
        return tuple([int(column[row]) for column in self.ids]), step

    def copy(self) -> Self:
        """A copy in private memory."""
        return type(self)(
            self.count,
            tuple([column.copy() for column in self.ids]),
            None if self.step is None else self.step.copy(),
            None if self.init is None else self.init.copy(),
            tuple([flags.copy() for flags in self.ends]),
            None if self.real is None else self.real.copy(),
        )

    def before_others(self) -> NDArray[np.bool_]:
        """Rows that may have a successor: real and no last step, bool `[n]`."""
        found = np.ones(self.count, dtype=np.bool_)
        for flag in self.ends:
            found &= ~flag
        return found if self.real is None else found & self.real

    def after_others(self) -> NDArray[np.bool_]:
        """Rows that may have a predecessor: real and no first step, bool `[n]`."""
        found = np.ones(self.count, dtype=np.bool_)
        if self.init is not None:
            found &= ~self.init
        return found if self.real is None else found & self.real


def as_numpy(leaf: Any) -> NDArray[Any] | None:
    """A leaf as a numpy array on the host; None for anything but a tensor."""
    if not isinstance(leaf, torch.Tensor):
        return None
    array: NDArray[Any] = leaf.detach().cpu().numpy()
    return array


def _single(column: NDArray[Any], count: int) -> NDArray[Any]:
    if column.ndim == 1:
        return column
    return column.reshape(count) if column.size == count else column.reshape(count, -1)[:, 0]


def _flags(get: Get, key: NestedKey | None, count: int) -> NDArray[np.bool_] | None:
    column = None if key is None else get(key)
    if column is None:
        return None
    flags = column if column.dtype is _BOOL else column != 0
    if flags.size == count:
        return flags.reshape(count)
    found: NDArray[np.bool_] = np.logical_or.reduce(flags.reshape(count, -1), 1)
    return found


def _ends(get: Get, keys: MarkerKeys, count: int) -> tuple[NDArray[np.bool_], ...]:
    ends = [flags for key in keys.ends if (flags := _flags(get, key, count)) is not None]
    far = None if keys.far is None else get(keys.far)
    if far is None:
        return tuple(ends)
    near = _single(far, count) == 1
    return tuple(flags & near for flags in ends)
