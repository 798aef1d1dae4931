"""Which columns say where trajectories begin and end, and what they say of some rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_layout import keys
from rl_layout.internals import cut_between
from rl_slabs import RowSchema
from rl_slabs.internals import Leaves, ValidatedLeaves, bits_of, carrier
from rl_tensordict import NestedKey, as_key, as_tuple
from rl_tensordict.arguments import stack_level

TRAJECTORY_KEYS: tuple[NestedKey, ...] = (keys.TRAJ_IDS, "episode")
"""Where ids are looked for, in this order."""

_END_NAMES = frozenset(
    f"{name}{plural}"
    for name in ("done", "terminated", "truncated", "terminal", "termination", "truncation")
    for plural in ("", "s")
)
DONE_LIKE = frozenset({*keys.DONE_KEYS, keys.REWARD})


@dataclass(frozen=True)
class MarkerKeys:
    """The marker columns of a storage; an absent marker cuts nothing."""

    # Columns that must be equal in two rows for one to continue the other
    ids: tuple[NestedKey, ...] = ()
    step: NestedKey | None = None  # The position in the trajectory
    init: NestedKey | None = None  # The flag of first steps
    ends: tuple[NestedKey, ...] = ()  # Flags of last steps; any one of them ends a trajectory
    far: NestedKey | None = None  # How far away the next observation of n-step rows is
    mask: NestedKey | None = None  # Which rows are real
    # Pairs of a root key and its next key: where ids or steps are missing, equal bits of all of
    # them prove that one row continues another
    observations: tuple[tuple[NestedKey, NestedKey], ...] = ()

    @classmethod
    def of(cls, schema: RowSchema) -> Self:
        """The contract's markers that a schema holds."""

        def here(key: NestedKey) -> NestedKey | None:
            return key if key in schema else None

        return cls(
            ids=next(((key,) for key in TRAJECTORY_KEYS if key in schema), ()),
            step=here(keys.TRAJ_STEP),
            init=here(keys.IS_INIT),
            ends=tuple(key for key in keys.NEXT_DONE_KEYS if key in schema),
            far=here(keys.STEPS_TO_NEXT_OBS),
            mask=here(keys.MASK),
            observations=tuple(_pairs(schema)),
        )

    @cached_property
    def columns(self) -> tuple[NestedKey, ...]:
        """The keys of all marker columns, without observations."""
        single = (self.step, self.init, self.far, self.mask)
        return (*self.ids, *self.ends, *(key for key in single if key is not None))

    @cached_property
    def paths(self) -> tuple[tuple[NestedKey, tuple[str, ...]], ...]:
        """The keys of all marker columns, with their paths."""
        return tuple((key, as_tuple(key)) for key in self.columns)

    @cached_property
    def kinds(self) -> tuple[int | None, ...]:
        """Which of the flags of last steps are done, terminated and truncated."""
        places = {key: place for place, key in enumerate(self.ends)}
        return tuple(places.get(key) for key in keys.NEXT_DONE_KEYS)

    @cached_property
    def observed(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """The paths of the observations and of the next observations, in pairs."""
        return tuple((as_tuple(key), as_tuple(after)) for key, after in self.observations)

    @cached_property
    def cuts(self) -> bool:
        """Whether any column marks where trajectories begin or end."""
        return bool(self.ids or self.ends or self.step is not None or self.init is not None)

    @cached_property
    def numbered(self) -> bool:
        """Whether rows have ids and steps, which determine their predecessor."""
        return bool(self.ids) and self.step is not None

    @cached_property
    def compares(self) -> bool:
        """Whether observations of neighbours inside one call are compared."""
        return bool(self.observations) and not self.numbered

    def with_explicit(self, ids: Iterable[NestedKey], ends: Iterable[NestedKey]) -> Self:
        """These markers with further ids and ends that a user names."""
        return replace(
            self,
            ids=tuple(dict.fromkeys((*self.ids, *map(_short, ids)))),
            ends=tuple(dict.fromkeys((*self.ends, *map(_short, ends)))),
        )


def end_candidates(schema: RowSchema) -> list[NestedKey]:
    """Flag leaves that may mark the ends of trajectories, by shape or key."""
    return [
        field.key
        for field in schema.fields
        if prod(field.shape) == 1
        and field.path[-1] != "action"
        and field.path[0] != keys.COLLECTOR  # markers of other things
        and (field.dtype is torch.bool or field.path[-1].lower() in _END_NAMES)
    ]


def refuse_unknown_ends(schema: RowSchema) -> None:
    """Raises where flags are stored that may mark ends, and no known marker is."""
    if found := end_candidates(schema):
        raise KeyError(
            f"nothing is known to say where trajectories end among the leaves {list(schema)}, "
            f"so slices would run over episode ends: name the flag, as in "
            f"end_key={found[0]!r} (candidates: {found}), the ids with traj_key=, or store "
            "the flags under ('next', 'done')."
        )


def warn_of_endless(schema: RowSchema, known: MarkerKeys) -> bool:
    """Warns of steps whose ends nothing shows; a single leaf is taken for a plain sequence."""
    if known.observations or len(schema) == 1:
        return False
    warnings.warn(
        f"nothing among the leaves {list(schema)} says where trajectories end: the rows of each "
        "call are taken for one trajectory, and slices run over all of them. Store ('next', "
        "'done'), or ids under ('collector', 'traj_ids').",
        UserWarning,
        stacklevel=stack_level(),
    )
    return True


def _short(key: NestedKey) -> NestedKey:
    return as_key(as_tuple(key))


def _pairs(schema: RowSchema) -> Iterable[tuple[NestedKey, NestedKey]]:
    for field in schema.fields:
        after = (keys.NEXT, *field.path)
        if field.path[0] == keys.NEXT or field.path[-1] in DONE_LIKE or after not in schema:
            continue
        following = schema[after]
        if (following.dtype, following.shape) == (field.dtype, field.shape):
            yield field.key, after


RowSelection = slice | NDArray[np.int64]
_BOOL = np.dtype(np.bool_)
Get = Callable[[NestedKey], NDArray[Any] | None]
ReadColumn = Callable[[NestedKey], NDArray[Any]]


@dataclass(frozen=True)
class Extent:
    """Rows laid out flat, with the distance between two that are neighbours in time."""

    # Row i has a later neighbour at i + stride, unless it is the last of its run.

    count: int  # Rows
    stride: int  # Flat distance between neighbours in time
    length: int  # Rows of one run; its last row has no later neighbour
    # Whether the caller says that the dimension is time, so that nothing is compared
    named: bool = False

    @classmethod
    def of(cls, shape: tuple[int, ...], dim_extend: int, *, named: bool = False) -> Self:
        """The extent of a batch whose last dimension is time."""
        count = int(np.prod(shape))
        time_first = 0 < dim_extend == len(shape) - 1
        return cls(count, count // shape[-1] if time_first else 1, shape[-1], named)

    def inside(self) -> NDArray[np.bool_] | None:
        """For each pair of rows i and i + stride whether both are in one run; None if all do."""
        if self.stride * self.length == self.count:
            return None
        rows = np.arange(max(self.count - self.stride, 0))
        inside: NDArray[np.bool_] = (rows // self.stride) % self.length != self.length - 1
        return inside


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
    # Rows whose next observation is one step away, bool [n]; None if that of every row is
    near: NDArray[np.bool_] | None = None
    _ended: NDArray[np.bool_] | None = None  # Of `ended`, which several ask for

    @classmethod
    def of(cls, cells: TensorDictBase, keys: MarkerKeys) -> Self:
        """The markers of rows `[n]`; absent columns are skipped."""
        return cls.read(lambda key: as_numpy(cells.get(key, None)), keys, len(cells))

    @classmethod
    def read(cls, get: Get, keys: MarkerKeys, count: int) -> Self:
        """The markers of `count` rows; `get` returns the columns `[count, ...]` by key."""
        ids = [column for key in keys.ids if (column := get(key)) is not None]
        step = None if keys.step is None else get(keys.step)
        far = None if keys.far is None else get(keys.far)
        near = None if far is None else _single(far, count) == 1
        return cls(
            count=count,
            ids=tuple(_single(column, count) for column in ids),
            step=None if step is None else _single(step, count),
            init=_flags(get, keys.init, count),
            ends=_ends(get, keys, count, near),
            real=_flags(get, keys.mask, count),
            near=near,
        )

    def joined(self, earlier: RowSelection, later: RowSelection) -> NDArray[np.bool_]:
        """For pairs of rows, whether no marker cuts between them, bool `[pairs]`."""
        rows = range(self.count)[earlier] if isinstance(earlier, slice) else earlier
        cut: NDArray[np.bool_] = np.zeros(len(rows), dtype=np.bool_)
        ids, step, pairs = self.ids, self.step, (earlier, later)
        ended = () if (flags := self.ended()) is None else (flags,)
        cut_between(cut, pairs, alike=ids, step=step, is_init=self.init, ends=ended)
        joined = np.logical_not(cut, out=cut)
        if self.real is not None:
            joined &= self.real[earlier] & self.real[later]
        return joined

    def name(self, row: int) -> tuple[tuple[int, ...], int | None]:
        """The ids of a row, and its step or None."""
        step = None if self.step is None else int(self.step[row])
        return tuple([int(column[row]) for column in self.ids]), step

    def leads_on(self, row: int) -> bool:
        """Whether the next observation of a row may be that of the row after it."""
        is_far = self.near is not None and not self.near[row]
        return not is_far and not any(flag[row] for flag in self.ends)

    def copy(self) -> Self:
        """A copy in private memory."""
        return type(self)(
            self.count,
            tuple([column.copy() for column in self.ids]),
            None if self.step is None else self.step.copy(),
            None if self.init is None else self.init.copy(),
            tuple([flags.copy() for flags in self.ends]),
            None if self.real is None else self.real.copy(),
            None if self.near is None else self.near.copy(),
        )

    def ended(self) -> NDArray[np.bool_] | None:
        """Rows of which any flag says that they are last steps, bool `[n]`; None without flags."""
        if self._ended is None and self.ends:
            first, *others = self.ends
            for flag in others:
                first = first | flag
            self._ended = first
        return self._ended

    def before_others(self) -> NDArray[np.bool_]:
        """Rows that may have a successor: real and no last step, bool `[n]`."""
        ended = self.ended()
        found = np.ones(self.count, dtype=np.bool_) if ended is None else ~ended
        return found if self.real is None else found & self.real

    def ends_of_few(self) -> tuple[set[int], set[int]]:
        """The rows of `after_others` and of `before_others`, found without arrays."""
        rows = range(self.count)
        real = set(rows if self.real is None else np.flatnonzero(self.real).tolist())
        begun = set() if self.init is None else set(compress(rows, self.init.tolist()))
        over = {row for flags in self.ends for row in compress(rows, flags.tolist())}
        return real - begun, real - over

    def unlinked(self) -> NDArray[np.int32]:
        """Links of rows that continue none, int32 `[n]`: 0, and -1 for padding."""
        back = np.zeros(self.count, dtype=np.int32)
        if self.real is not None:
            back[~self.real] = -1
        return back

    def after_others(self) -> NDArray[np.bool_]:
        """Rows that may have a predecessor: real and no first step, bool `[n]`."""
        found = np.ones(self.count, dtype=np.bool_) if self.init is None else ~self.init
        return found if self.real is None else found & self.real


class RowRun(NamedTuple):
    """What one row is, or a few of which each continues the one before: read without arrays."""

    ids: tuple[int, ...]
    step: int | None  # Of the first row; None if rows have none
    begins: bool  # Whether the first row is a first step
    ends: bool  # Whether the last row ends a trajectory
    is_near: bool = True  # Whether the next observation of the last row is one step away

    @classmethod
    def of_row(cls, get: ReadColumn, keys: MarkerKeys) -> RowRun:
        """What a row is, whose leaves `get` returns by key."""
        step = None if keys.step is None else int(get(keys.step).item(0))
        ids = tuple([int(get(key).item(0)) for key in keys.ids])
        begins = keys.init is not None and any_set(get(keys.init))
        ends = False
        for key in keys.ends:
            ends = ends or any_set(get(key))
        is_near = keys.far is None or int(get(keys.far).item(0)) == 1
        return cls(ids, step, begins, ends and is_near, is_near)

    @classmethod
    def of(cls, leaves: ValidatedLeaves, keys: MarkerKeys, count: int) -> RowRun | None:
        """What rows with ids and steps are, if they are one run and no row says more."""
        if not keys.numbered or keys.step is None or keys.mask is not None or keys.far is not None:
            return None
        (steps, *names), begun, ends = (
            _values(leaves, some)
            for some in (
                (keys.step, *keys.ids),
                () if keys.init is None else (keys.init,),
                keys.ends,
            )
        )
        if steps != [*range(steps[0], steps[0] + count)]:
            return None
        for name in names:
            if len(name) != count or name.count(name[0]) != count:
                return None
        # no first step after the first row, and no end before the last one
        for flags in begun:
            if len(flags) != count or any(flags[1:]):
                return None
        for flags in ends:
            if len(flags) != count or any(flags[:-1]):
                return None
        first, last = (
            any(flags[place] for flags in some) for some, place in ((begun, 0), (ends, -1))
        )
        return cls(tuple([name[0] for name in names]), steps[0], first, last)


def read_columns(
    leaves: Leaves | ValidatedLeaves, keys: MarkerKeys
) -> Mapping[NestedKey, NDArray[Any] | None]:
    """The marker columns as numpy arrays of bits; `get` returns None for an absent one."""
    if isinstance(leaves, ValidatedLeaves):
        return leaves
    columns: dict[NestedKey, NDArray[Any] | None] = {}
    for key, path in keys.paths:
        leaf = leaves.get(path)
        columns[key] = None if leaf is None else bits_of(leaf, carrier(leaf.dtype))
    return columns


def any_set(flag: NDArray[Any]) -> bool:
    """Whether a flag of one row, or of any member in it, is set."""
    return bool(flag.item() if flag.size == 1 else flag.any())


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


def _ends(
    get: Get, keys: MarkerKeys, count: int, near: NDArray[np.bool_] | None
) -> tuple[NDArray[np.bool_], ...]:
    ends = [flags for key in keys.ends if (flags := _flags(get, key, count)) is not None]
    return tuple(ends if near is None else [flags & near for flags in ends])


def _values(leaves: ValidatedLeaves, keys: Sequence[NestedKey]) -> list[list[Any]]:
    return [leaves[key].ravel().tolist() for key in keys]
