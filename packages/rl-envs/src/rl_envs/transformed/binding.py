"""Transformed environments bound to the columns of a batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env import checks
from rl_envs.env.arrays import RowArrays
from rl_envs.env.interface import Binding, Environment
from rl_envs.rollouts.deferred_transforms import changes_actions
from rl_layout import keys
from rl_tensordict import build, nest
from rl_tensordict.types import Array, KeyPath
from rl_transforms import Compose, InitTracker, TensorDictPrimer
from rl_transforms.numpy_steps import At, LeafView, NumpyPipeline, bind_steps

PASSIVE = (InitTracker, TensorDictPrimer)  # work at resets, and carry on what there is at steps


def pass_step(
    transforms: Compose,
    root: TensorDictBase,
    after: TensorDictBase,
    given: TensorDictBase | None,
) -> TensorDictBase:
    """Pass a step's results `[*B]` through transforms; entries that the policy wrote are kept."""
    written = [] if given is None else [key for key, _ in keys.leaves(given)]
    for one in transforms:
        before, after = after, one.step(root, after)
        lost = [key for key in written if after.get(key, None) is None]
        if lost:
            after = after.copy()
            for key in lost:
                after.set(key, before.get(key))
    return after


class Transformed(Environment, Protocol):
    """The interface of `TransformedEnv` for its binding."""

    @property
    def inner(self) -> Environment:
        """The environment inside."""

    @property
    def outer(self) -> Compose:
        """The transforms around it."""


class TransformedBinding:
    """A `TransformedEnv` bound to the columns of a batch."""

    # The environment inside writes directly into the columns of entries that keep shape and dtype,
    # and into columns of its own (`_raw_*`) for all others. Where every transform has a numpy twin,
    # a step calls these in order; otherwise, as at a reset, the transforms get a tensordict of
    # views, and the entries that they change are copied back.

    def __init__(
        self, env: Transformed, root: RowArrays, after: RowArrays, *, checks_inner: bool = False
    ) -> None:
        self.env, self.base = env, env.inner
        self._rows = env.batch_size
        self._time = len(self._rows)
        self._given: set[KeyPath] = set()  # what the policy writes under "next"
        self._root, self._after = dict(root), dict(after)
        self._num_steps = max(a.shape[self._time] for a in (*root.values(), *after.values()))
        base = self.base
        shown = dict(base.layout.shown)
        self._raw_root = {key: self._own(key, leaf, root) for key, leaf in shown.items()}
        results = dict(base.layout.after)
        self._raw_after = {key: self._own(key, leaf, after) for key, leaf in results.items()}
        # what the inverses make of actions is for the environment alone: a batch holds the policy's
        changes = any(map(changes_actions, env.outer))
        given = {} if changes else root
        self._actions = {key: self._own(key, leaf, given) for key, leaf in base.layout.action}
        # outputs and inputs of the transforms, as tensors on the memory of the columns
        self._out = {name: _tensors(given) for name, given in (("root", root), ("after", after))}
        self._raw = {
            "root": {**self._out["root"], **_tensors(self._raw_root)},
            "after": {**self._out["after"], **_tensors(self._raw_after)},
        }
        self._inverts = changes or any(
            self._actions[key] is not root.get(key) for key in self._actions
        )
        self._carried = [
            key
            for key, _ in (*env.layout.observation, *env.layout.state)
            if key in root and key in after and self._raw_root.get(key) is not root[key]
        ]
        self._carries = self._passive_columns()
        marks: RowArrays = {key: root[key] for key in root if key == keys.NEXT_MISSING}
        self._missing = marks.get(keys.NEXT_MISSING)
        observed = [key for key, _ in base.layout.observation if key in root and key in after]
        self._seen = [(root[key], after[key]) for key in observed]
        inside: dict[KeyPath, Array] = {**self._raw_root, **self._actions, **marks}
        # where rows are reset while others step: bool [B, T], False where a row was only reset,
        # and the observations of those rows
        self._real: Array | None = None
        self._fresh: dict[KeyPath, Array] = {}
        if base.resets_by_stepping:
            sizes = (*self._rows, self._num_steps)
            inside[keys.MASK] = self._real = root.get(keys.MASK, np.zeros(sizes, bool))
        bound = base.bind(inside, self._raw_after)
        self._binding = CheckedBinding(base, bound, self._raw_after) if checks_inner else bound
        self._results = list(self._raw_after)
        self._pipeline: NumpyPipeline | None = None
        self._has_bound_steps = False
        self._at_reset = self._resetting()
        self._done_at = LeafView.of(self._after["done",], self._time).at
        self._carrying = [self._at_steps(key) for key in self._carried]

    def _at_steps(self, key: KeyPath) -> tuple[At, At]:
        """The rows of a step's result, and those of the root of a step."""
        columns = self._after[key], self._root[key]
        read, write = (LeafView.of(column, self._time).at for column in columns)
        return read, write

    def _own(self, key: KeyPath, leaf: Any, columns: RowArrays) -> Array:
        """The column that the environment inside writes: the given one where it fits."""
        shape = (*self._rows, self._num_steps, *leaf.shape[self._time :])
        dtype = torch.empty(0, dtype=leaf.dtype, device="cpu").numpy().dtype
        given = columns.get(key)
        row = shape[self._time + 1 :]
        if given is None or given.dtype != dtype or given.shape[self._time + 1 :] != row:
            return np.zeros(shape, dtype)
        return given

    def _passive_columns(self) -> dict[KeyPath, Array] | None:
        """Columns that a step copies from the root, where no transform does anything else."""
        members = list(self.env.outer)
        if self.base.done_groups != [()] or any(type(one) not in PASSIVE for one in members):
            return None
        names = [
            key
            for one in members
            if type(one) is TensorDictPrimer
            for key in one.primers.keys(True, True)
        ]
        for one in members:
            if type(one) is InitTracker and (one.name,) in self._after:
                self._after[one.name,][...] = False
        return {key: self._after[key] for key in map(keys.as_tuple, names) if key in self._after}

    def is_numpy(self) -> bool:
        """Whether steps are calls on arrays throughout, without a tensordict."""
        if self._carries is None and not self._has_bound_steps:
            self._bind_steps()
        is_bound = self._carries is not None or self._pipeline is not None
        return is_bound and not self._inverts

    def set_policy_next_keys(self, names: set[KeyPath]) -> None:
        """Set the entries of `"next"` that the policy writes."""
        self._given = {key for key in names if key in self._after}
        self._results = [*self._raw_after, *(self._given - self._raw_after.keys())]
        self._has_bound_steps = False
        self._binding.set_policy_next_keys(names)

    def start(self, mask: Array | None = None) -> None:
        """Reset the rows of a mask, bool `[*B, 1]`, or all, and write column 0 of the root."""
        if mask is not None:
            self._binding.start(mask)
            self._reset_rows(0, mask)
            return
        self._binding.start()
        raw = self._at(self._raw["root"], 0, self._raw_root)
        fresh = self.env.outer.reset(raw)
        self._warn_of_unknown(fresh)
        self._write(self._root, fresh, raw, 0, None)
        self.env.is_started = True

    def _warn_of_unknown(self, fresh: TensorDictBase) -> None:
        """Warn of entries that transforms make and no spec describes: they have no columns."""
        known = self._root.keys() | {
            key for key, _ in (*self.env.layout.shown, *self.env.layout.state)
        }
        lost = [keys.as_key(key) for key, _ in keys.leaves(fresh) if key not in known]
        if lost:
            warnings.warn(
                f"the transforms make {lost}, which have no spec, so a rollout leaves them out: "
                "describe them in transform_observation_spec of a Transform, or set native_rows = "
                "False on the environment, whose rollouts are slower and keep all entries.",
                UserWarning,
                stacklevel=2,
            )

    def step(self, t: int) -> bool:
        """Step from column t of the root into column t of `"next"`; say whether a row is done."""
        if self._carries is not None:
            return self._copy_carried(self._carries, t)
        if not self._has_bound_steps:
            self._bind_steps()
        if self._inverts:
            self._invert(t)
        self._binding.step(t)
        truly = None if self._real is None else self._kept(self._real, t)
        if self._pipeline is None:
            self._step_through_tensordicts(t)
        else:
            self._pipeline.run(t)
        return self._is_over(t, truly)

    def _copy_carried(self, carries: dict[KeyPath, Array], t: int) -> bool:
        over = self._binding.step(t)
        for key, column in carries.items():
            if key not in self._given:
                self._column(column, t)[...] = self._column(self._root[key], t)
        if self._real is not None:
            self._kept(self._real, t)
        return over

    def _step_through_tensordicts(self, t: int) -> None:
        """Pass a step through the transforms, as tensordicts."""
        root = self._at(self._out["root"], t, self._root)
        raw = self._at(self._raw["after"], t, self._results)
        given = self._at(self._out["after"], t, self._given) if self._given else None
        after = pass_step(self.env.outer, root, raw, given)
        self._write(self._after, after, raw, t, None)

    def _is_over(self, t: int, truly: Array | None) -> bool:
        missing = None if self._missing is None else self._column(self._missing, t)
        if missing is not None and missing.any():
            # what is repeated has passed the transforms before: it must not pass them again
            for before, column in self._seen:
                self._column(column, t)[missing] = self._column(before, t)[missing]
        done = self._done_at(t)
        if truly is not None:
            checks.check_ends(done.reshape(self._rows), truly)
        return bool(done.any())

    def _bind_steps(self) -> None:
        """Bind the transforms' steps to columns, where all of them have a numpy twin."""
        columns = (self._root, self._raw_after, self._after)
        pipeline = NumpyPipeline(self._time, *columns, self._given)
        self._pipeline = pipeline if bind_steps(pipeline, self.env.outer) else None
        self._has_bound_steps = True

    def _resetting(self) -> tuple[NumpyPipeline, list[tuple[At, At]]] | None:
        """Bind the transforms' resets; with pairs of a root column and the result it receives."""
        pipeline = NumpyPipeline(self._time, {}, self._raw_root, {}, is_reset=True)
        if not bind_steps(pipeline, self.env.outer):
            return None
        results = []
        for key, _ in self.env.layout.shown:
            column = self._root.get(key)
            found = pipeline.now(key)
            is_raw = column is self._raw_root.get(key) and not pipeline.has_changed(key)
            if column is None or is_raw:
                continue
            own = LeafView.of(column, self._time)
            if found is None or found.form != own.form:
                return None
            results.append((own.at, found.at))
        return pipeline, results

    def _kept(self, real: Array, t: int) -> Array:
        """Return the rows that the environment ended, and save the roots of those only reset."""
        fresh = ~real[..., t]
        self._fresh = {}
        if fresh.any():
            columns = {key: self._raw_after[key] for key, _ in self.base.layout.observation}
            self._fresh = {key: self._column(col, t)[fresh] for key, col in columns.items()}
        truly: Array = self._column(self._raw_after["done",], t).reshape(self._rows).copy()
        return truly

    def advance(self, t: int) -> None:
        """Write column t + 1 of the root; rows whose `done` is set in column t are reset."""
        # where rows are reset while others step, the rows that start are those reset in column t
        self._binding.advance(t)
        for read, write in self._carrying:
            write(t + 1)[...] = read(t)
        mask = self._done_at(t) if self._real is None else ~self._real[..., t]
        if mask.any():
            for key, rows in self._fresh.items():
                self._column(self._raw_root[key], t + 1)[mask.reshape(self._rows)] = rows
            self._reset_rows(t + 1, mask)

    def _reset_rows(self, t: int, mask: Array) -> None:
        """Pass the roots of rows that were reset through the transforms."""
        mask = mask.reshape(self._rows)
        if self._at_reset is not None:
            pipeline, results = self._at_reset
            pipeline.run(t)
            for column, cell in results:
                _put_rows(column(t), cell(t), mask)
            return
        root = self._at(self._raw["root"], t, self._raw["root"])
        fresh = self.env.outer.reset(root, torch.from_numpy(mask.copy()))
        self._write(self._root, fresh, root, t, mask)

    def _invert(self, t: int) -> None:
        inner = self.env.outer.inv(self._at(self._out["root"], t, self._root))
        assert inner is not None
        for key, column in self._actions.items():
            self._column(column, t)[...] = keys.require(inner, key).numpy()

    def _column(self, column: Array, t: int) -> Array:
        place: tuple[Any, ...] = (*(slice(None),) * self._time, t, ...)
        found: Array = column[place]
        return found

    def _at(self, views: dict[KeyPath, Tensor], t: int, names: Iterable[KeyPath]) -> TensorDictBase:
        return build(nest({key: views[key].select(self._time, t) for key in names}), self._rows)

    def _write(
        self,
        columns: dict[KeyPath, Array],
        new: TensorDictBase,
        old: TensorDictBase,
        t: int,
        mask: Array | None,
    ) -> None:
        """Copy the entries that the transforms changed; with a mask `[*B]`, its rows only."""
        before = {key: old.get(key, None) for key in columns}
        changed = {
            key: value
            for key, value in keys.leaves(new)
            if key in columns and value is not before[key]
        }
        # a value may be a view of another entry, which must not be overwritten before it is copied
        memory = {_address(before[key]) for key in changed if before[key] is not None}
        arrays = {
            key: _array(value.clone() if _address(value) in memory else value)
            for key, value in changed.items()
        }
        for key, array in arrays.items():
            _put_rows(self._column(columns[key], t), array, mask)


class CheckedBinding:
    """A binding of one step, whose results are checked before they pass transforms."""

    def __init__(self, env: Environment, inner: Binding, after: RowArrays) -> None:
        self._env, self._inner = env, inner
        place: tuple[Any, ...] = (*(slice(None),) * len(env.batch_size), 0, ...)
        self._rows = {key: column[place] for key, column in after.items()}
        self.start, self.advance = inner.start, inner.advance
        self.set_policy_next_keys = inner.set_policy_next_keys

    def step(self, t: int) -> bool:
        """Step, and raise for results outside their specs."""
        over = self._inner.step(t)
        if self._env.check_values:
            self._env.layout.check_arrays(self._rows)
        return over


def _put_rows(place: Array, values: Array, mask: Array | None) -> None:
    """Write rows `[*B, ...]`; with a mask `[*B]`, its rows only."""
    if mask is None:
        place[...] = values
    else:
        where = mask.reshape(*mask.shape, *(1,) * (place.ndim - mask.ndim))
        np.copyto(place, values, where=where)


def _address(value: Tensor) -> int:
    """The memory that a tensor is a view of."""
    return value.untyped_storage().data_ptr()


def _tensors(arrays: RowArrays) -> dict[KeyPath, Tensor]:
    return {key: torch.from_numpy(array) for key, array in arrays.items()}


def _array(value: Tensor) -> Array:
    array: Array = value.detach().numpy()
    return array
